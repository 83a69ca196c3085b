package zfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

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
