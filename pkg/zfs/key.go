package zfs

// HasPassphrase tells whether ZFS shows, of an encryption root's key, by what it can
// be known again.
func (d *Dataset) HasPassphrase() bool {
	salt := d.Get("pbkdf2salt")
	return d.Get("keyformat") == "passphrase" && salt != "" && salt != "0"
}

// KeyIsProved tells whether two encryption roots have one key for sure: a passphrase
// with one salt, which is random and new with each zfs change-key.
func KeyIsProved(a, b *Dataset) bool {
	return a.HasPassphrase() && b.HasPassphrase() && SameKey(a, b) && a.Get("pbkdf2iters") != "" && b.Get("pbkdf2iters") != ""
}

// SameKey tells whether two encryption roots have one key, as far as their
// properties tell: of a passphrase the salt, which is new with each zfs
// change-key; of other keys nothing.
func SameKey(a, b *Dataset) bool {
	for _, name := range []string{"keyformat", "pbkdf2salt", "pbkdf2iters"} {
		if v, w := a.Get(name), b.Get(name); v != "" && w != "" && v != w {
			return false
		}
	}
	return true
}

// KeyIsUnknown tells whether two datasets may have one key, of which ZFS shows nothing: one
// that is no passphrase.
func KeyIsUnknown(a, b *Dataset) bool {
	format := a.Get("keyformat")
	return format != "" && format != "none" && format != "passphrase" && SameKey(a, b)
}

// AssertedKey has a dataset take its key from an encryption root above it.
type AssertedKey struct {
	Dataset string `json:"dataset"`
	Root    string `json:"root"`
}

// RootOf returns the encryption root of a dataset of the listing, nil where it is not
// encrypted, or its root is not listed.
func (l *Listing) RootOf(d *Dataset) *Dataset {
	if d == nil || !d.Encrypted() {
		return nil
	}
	return l.Find(d.Get("encryptionroot"))
}

// KeyAbove returns the encryption root above a dataset that is one itself and could
// take its key from there; nil where there is none. A clone has its origin's key.
func (l *Listing) KeyAbove(d *Dataset) *Dataset {
	if d.Inconsistent() || d.Get("origin") != "" || l.RootOf(d) != d {
		return nil
	}
	return l.RootOf(l.Find(ParentOf(d.Name)))
}

// KeyToJoin returns the encryption root above a dataset from which it can take its key
// as it is, without a key loaded: it is proved to be one, and nothing of its own says
// where its key is. It is nil where there is none.
func (l *Listing) KeyToJoin(d *Dataset) *Dataset {
	above := l.KeyAbove(d)
	if above == nil || !KeyIsProved(d, above) || !d.Prompts() {
		return nil
	}
	return above
}

// Prompts tells, of an encryption root, that its key is neither loaded nor known where.
func (d *Dataset) Prompts() bool {
	at := d.Get("keylocation")
	return !d.KeyLoaded() && (at == "" || at == "prompt" || at == "none")
}

// KeyCameAlong reports whether the key of an encryption root came with a raw stream that zxfer
// received.
func (d *Dataset) KeyCameAlong() bool {
	flags := d.Properties[FlagsProperty]
	return flags.Local() && flags.Value == "w"
}

// PropertyChange is a change of a dataset's properties.
type PropertyChange struct {
	Dataset string            `json:"dataset"`
	Set     map[string]string `json:"set,omitempty"`
	// Revert are no longer set here: what came with the dataset, what is set above it,
	// or the default is valid again.
	Revert []string `json:"revert,omitempty"`
}
