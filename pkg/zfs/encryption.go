package zfs

// HasPassphrase reports whether the encryption root has a passphrase with a salt, which
// identifies its key.
func (d *Dataset) HasPassphrase() bool {
	salt := d.Get("pbkdf2salt")
	return d.Get("keyformat") == "passphrase" && salt != "" && salt != "0"
}

// KeyIsProved reports whether two encryption roots certainly have the same key: a passphrase
// with the same salt. zfs change-key creates a random salt each time.
func KeyIsProved(a, b *Dataset) bool {
	return a.HasPassphrase() && b.HasPassphrase() && SameKey(a, b) && a.Get("pbkdf2iters") != "" && b.Get("pbkdf2iters") != ""
}

// SameKey reports whether two encryption roots may have the same key. It compares salts of
// passphrases. Properties of other keys do not identify them.
func SameKey(a, b *Dataset) bool {
	for _, name := range []string{"keyformat", "pbkdf2salt", "pbkdf2iters"} {
		if v, w := a.Get(name), b.Get(name); v != "" && w != "" && v != w {
			return false
		}
	}
	return true
}

// KeyIsUnknown reports whether two datasets may have the same key, and it is not a passphrase,
// so that ZFS properties cannot confirm it.
func KeyIsUnknown(a, b *Dataset) bool {
	format := a.Get("keyformat")
	return format != "" && format != "none" && format != "passphrase" && SameKey(a, b)
}

// AssertedKey asks that a dataset inherit its key from the encryption root Root, an ancestor.
type AssertedKey struct {
	Dataset string `json:"dataset"`
	Root    string `json:"root"`
}

// RootOf returns the encryption root of a dataset. It returns nil if the dataset is not
// encrypted or its root is not listed.
func (l *Listing) RootOf(d *Dataset) *Dataset {
	if d == nil || !d.Encrypted() {
		return nil
	}
	return l.Find(d.Get("encryptionroot"))
}

// KeyAbove returns the encryption root of the parent of d, if d is itself an encryption root
// and could inherit that key. Otherwise it returns nil. A clone has its origin's key.
func (l *Listing) KeyAbove(d *Dataset) *Dataset {
	if d.Inconsistent() || d.Get("origin") != "" || l.RootOf(d) != d {
		return nil
	}
	return l.RootOf(l.Find(ParentOf(d.Name)))
}

// InheritableKey returns the encryption root from which d can inherit its key without a loaded key:
// both certainly have the same key, and d has no key location. Otherwise it returns nil.
func (l *Listing) InheritableKey(d *Dataset) *Dataset {
	above := l.KeyAbove(d)
	if above == nil || !KeyIsProved(d, above) || !d.Prompts() {
		return nil
	}
	return above
}

// Prompts reports whether the key of an encryption root is not loaded and has no location.
func (d *Dataset) Prompts() bool {
	at := d.Get("keylocation")
	return !d.KeyLoaded() && (at == "" || at == "prompt" || at == "none")
}

// KeyReceivedRaw reports whether zxfer received the key of an encryption root with a raw stream.
func (d *Dataset) KeyReceivedRaw() bool {
	flags := d.Properties[FlagsProperty]
	return flags.Local() && flags.Value == "w"
}

// PropertyChange changes properties of a dataset.
type PropertyChange struct {
	Dataset string            `json:"dataset"`
	Set     map[string]string `json:"set,omitempty"`
	// Revert lists properties to revert to the received, inherited or default value.
	Revert []string `json:"revert,omitempty"`
}
