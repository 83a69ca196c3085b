package tcp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// tagKeySize is that of AES-128: a tag has 128 bits, a longer key would only
// be slower.
const tagKeySize = 16

// tagger makes or checks the tags of one direction of one connection: GMAC,
// that is AES-GCM with nothing to encrypt and the frame as additional data.
// The nonce is the number of the frame in its direction. Each connection and
// direction has a key of its own, so a nonce never repeats under a key; and as
// it is counted, not sent, a frame that was dropped, repeated or moved does
// not match its tag.
type tagger struct {
	gcm   cipher.AEAD
	nonce [12]byte
	out   [TagSize]byte
}

func newTagger(key []byte) (*tagger, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	return &tagger{gcm: gcm}, err
}

// seal appends the tag of frame number n to it; the frame's buffer must have
// the room.
func (t *tagger) seal(frame []byte, n uint64) []byte {
	binary.BigEndian.PutUint64(t.nonce[4:], n)
	return t.gcm.Seal(frame, t.nonce[:], nil, frame)
}

// open tells whether tag is that of frame number n.
func (t *tagger) open(frame, tag []byte, n uint64) bool {
	binary.BigEndian.PutUint64(t.nonce[4:], n)
	_, err := t.gcm.Open(t.out[:0], t.nonce[:], tag, frame)
	return err == nil
}
