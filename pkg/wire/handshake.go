package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake, on every connection, inside TLS where the mode is tls:
//
//	dialer    magic(8) mode(1) index(1) session(16) nonce(32)
//	listener  nonce(32) proof(32)
//	dialer    proof(32)
//
// A proof is HMAC-SHA-256, under the session's secret, of a label for its
// direction and of everything said before, TLS's exported key included. Nonces
// are fresh on both ends, so a recorded handshake is worth nothing, and no side
// learns more of the secret than that the other has it.
const (
	magic     = "ZXFER/1\n"
	nonceSize = 32
	helloSize = len(magic) + 2 + 16 + nonceSize

	handshakeTimeout = 10 * time.Second
)

var modeByte = map[Mode]byte{Signed: 1, TLS: 2, Plain: 3}

// errStranger is what a listener says of a peer that is not the expected one.
var errStranger = errors.New("not a peer of this transfer")

// transcript is what both ends have said so far.
type transcript struct {
	secret []byte
	said   []byte
}

func (t *transcript) proof(label string) []byte {
	m := hmac.New(sha256.New, t.secret)
	m.Write([]byte("zxfer/1 " + label + " proof"))
	m.Write(t.said)
	return m.Sum(nil)
}

// taggers derives the keys of both directions.
func (t *transcript) taggers() (dialer, listener tagger, err error) {
	salt := sha256.Sum256(t.said)
	for _, d := range []struct {
		to    *tagger
		label string
	}{{&dialer, "dialer"}, {&listener, "listener"}} {
		key, err := hkdf.Key(sha256.New, t.secret, salt[:], "zxfer/1 "+d.label+" tags", 16)
		if err != nil {
			return dialer, listener, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return dialer, listener, err
		}
		if d.to.gmac, err = cipher.NewGCM(block); err != nil {
			return dialer, listener, err
		}
	}
	return dialer, listener, nil
}

// exported binds the handshake to the TLS connection that it runs in.
func exported(c net.Conn) ([]byte, error) {
	t, ok := c.(*tls.Conn)
	if !ok {
		return nil, nil
	}
	s := t.ConnectionState()
	return s.ExportKeyingMaterial("EXPORTER-zxfer-1", nil, 32)
}

// introduce is the dialer's side.
func introduce(c net.Conn, t *Ticket, index int) (*Conn, error) {
	session, err := hex.DecodeString(t.Session)
	if err != nil || len(session) != 16 || len(t.Secret) != 32 {
		return nil, errors.New("the ticket is malformed")
	}
	bound, err := exported(c)
	if err != nil {
		return nil, err
	}
	hello := make([]byte, 0, helloSize)
	hello = append(hello, magic...)
	hello = append(hello, modeByte[t.Mode], byte(index))
	hello = append(hello, session...)
	hello = hello[:helloSize]
	if _, err := rand.Read(hello[helloSize-nonceSize:]); err != nil {
		return nil, err
	}
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	answer := make([]byte, nonceSize+sha256.Size)
	if _, err := io.ReadFull(c, answer); err != nil {
		return nil, fmt.Errorf("the listener did not answer: %w", err)
	}
	ts := &transcript{secret: t.Secret, said: append(append(bound, hello...), answer[:nonceSize]...)}
	if !hmac.Equal(ts.proof("listener"), answer[nonceSize:]) {
		return nil, errors.New("the listener does not know the session's secret")
	}
	ts.said = append(ts.said, answer[nonceSize:]...)
	if _, err := c.Write(ts.proof("dialer")); err != nil {
		return nil, err
	}
	out := &Conn{index: index, rw: c, mode: t.Mode}
	out.send, out.receive, err = ts.taggers()
	return out, err
}

// welcome is the listener's side. streams bounds the index.
func welcome(c net.Conn, t *Ticket) (*Conn, error) {
	bound, err := exported(c)
	if err != nil {
		return nil, err
	}
	hello := make([]byte, helloSize)
	if _, err := io.ReadFull(c, hello); err != nil {
		return nil, fmt.Errorf("%w: it said too little: %w", errStranger, err)
	}
	session, err := hex.DecodeString(t.Session)
	if err != nil {
		return nil, err
	}
	index := int(hello[len(magic)+1])
	switch {
	case string(hello[:len(magic)]) != magic:
		return nil, fmt.Errorf("%w: it does not speak this protocol", errStranger)
	case hello[len(magic)] != modeByte[t.Mode]:
		return nil, fmt.Errorf("%w: it wants another mode", errStranger)
	case !hmac.Equal(hello[len(magic)+2:len(magic)+18], session):
		return nil, fmt.Errorf("%w: it names another session", errStranger)
	case index >= t.Streams:
		return nil, fmt.Errorf("%w: connection %d of %d", errStranger, index, t.Streams)
	}
	answer := make([]byte, nonceSize)
	if _, err := rand.Read(answer); err != nil {
		return nil, err
	}
	ts := &transcript{secret: t.Secret, said: append(append(bound, hello...), answer...)}
	answer = append(answer, ts.proof("listener")...)
	if _, err := c.Write(answer); err != nil {
		return nil, fmt.Errorf("%w: %w", errStranger, err)
	}
	ts.said = append(ts.said, answer[nonceSize:]...)
	proof := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, proof); err != nil {
		return nil, fmt.Errorf("%w: it gave no proof: %w", errStranger, err)
	}
	if !hmac.Equal(ts.proof("dialer"), proof) {
		return nil, fmt.Errorf("%w: it does not know the session's secret", errStranger)
	}
	out := &Conn{index: index, rw: c, mode: t.Mode}
	out.receive, out.send, err = ts.taggers()
	return out, err
}
