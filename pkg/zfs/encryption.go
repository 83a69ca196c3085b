package zfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

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

// keyFields returns the names of the encryption fields in a raw stream that are the same for
// all snapshots of a dataset.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (dsl_crypto_populate_key_nvlist)
func keyFields() []string {
	return []string{"DSL_CRYPTO_SUITE", "DSL_CRYPTO_GUID", "DSL_CRYPTO_VERSION",
		"DSL_CRYPTO_MASTER_KEY_1", "DSL_CRYPTO_HMAC_KEY_1", "DSL_CRYPTO_IV", "DSL_CRYPTO_MAC",
		"keyformat", "pbkdf2iters", "pbkdf2salt"}
}

// wrappedKey returns a fingerprint of the wrapped key in the head of a raw stream. A raw
// receive replaces the dataset's wrapped key. If the new one cannot be unwrapped, all
// snapshots become unreadable (openzfs#12614).
func wrappedKey(payload []byte) (string, error) {
	head, err := parseNVList(payload)
	if err != nil {
		return "", fmt.Errorf("head of a raw stream: %w", err)
	}
	keys, ok := head["crypt_keydata"].(map[string]any)
	if !ok {
		return "", errors.New("head of a raw stream without a key")
	}
	h := sha256.New()
	for _, name := range keyFields() {
		switch v := keys[name].(type) {
		case uint64, []byte:
			fmt.Fprintf(h, "%s=%x\n", name, v)
		default:
			return "", fmt.Errorf("head of a raw stream: its key has %T as %s", v, name)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// WrappedKey reads the head of a raw stream and returns the fingerprint of its wrapped key,
// for Gate.KeepKey.
func WrappedKey(stream io.Reader) (string, error) {
	var header [RecordSize]byte
	if _, err := io.ReadFull(stream, header[:]); err != nil {
		return "", err
	}
	order, err := byteOrder(header[:])
	if err != nil {
		return "", err
	}
	size := order.Uint32(header[4:])
	if size > maxBeginPayload {
		return "", fmt.Errorf("head of a stream has %d bytes, expected at most %d", size, maxBeginPayload)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(stream, payload); err != nil {
		return "", err
	}
	return wrappedKey(payload)
}
