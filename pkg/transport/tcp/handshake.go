package tcp

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Protocol is the version of the handshake and the frames.
const Protocol = "zxfer/1"

// The handshake of each connection in modes signed and plain:
//
//	dialer    hello: magic(8) session(16) stream(2) nonce(32)
//	listener  nonce(32) proof(32)
//	dialer    proof(32)
//
// Both proofs are HMACs with the session's secret over a label for the direction and the
// transcript: mode, hello and the listener's nonce. Both nonces are fresh, so recorded handshakes
// prove nothing. Neither end learns more about the secret than that the other one has it.
const (
	magic       = Protocol + "\n"
	sessionSize = 16
	nonceSize   = 32
	secretSize  = 32
	helloSize   = len(magic) + sessionSize + 2 + nonceSize
	proofSize   = sha256.Size

	labelTranscript    = Protocol + " transcript"
	labelDialerProof   = Protocol + " dialer proof"
	labelListenerProof = Protocol + " listener proof"
	labelDialerKey     = Protocol + " key dialer to listener"
	labelListenerKey   = Protocol + " key listener to dialer"
)

// handshakeTimeout bounds two parts of a handshake at the listener: the first message, then the
// rest. The dialer uses its deadline instead.
const handshakeTimeout = 10 * time.Second

// session holds what both ends know before a handshake.
type session struct {
	id      [sessionSize]byte
	secret  []byte
	mode    Mode
	streams int
}

// handshaker is the dialer's side of a handshake for one stream.
type handshaker func(c Socket, stream int) (*Conn, error)

// handshaker returns the handshake of the session's mode.
func (s *session) handshaker() (handshaker, error) {
	if s.mode == TLS {
		return s.tlsHandshaker()
	}
	return s.dial, nil
}

// accepter is the listener's side of a handshake. Its errors explain what an unauthenticated client did
// wrong, and are not sent to it. It calls sessionNamed once the client has named the session.
type accepter func(c Socket, sessionNamed func()) (*Conn, error)

// accepter returns the handshake of the session's mode.
func (s *session) accepter() (accepter, error) {
	if s.mode == TLS {
		return s.tlsAccepter()
	}
	return s.accept, nil
}

// dial is the handshaker of modes signed and plain.
func (s *session) dial(c Socket, stream int) (*Conn, error) {
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // never fails
	hello := slices.Concat([]byte(magic), s.id[:], binary.BigEndian.AppendUint16(nil, uint16(stream)), nonce[:])
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	var answer [nonceSize + proofSize]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return nil, err
	}
	transcript := s.transcript(hello, answer[:nonceSize])
	if !hmac.Equal(answer[nonceSize:], s.proof(labelListenerProof, transcript)) {
		return nil, errImpostor
	}
	if _, err := c.Write(s.proof(labelDialerProof, transcript)); err != nil {
		return nil, err
	}
	send, receive, err := s.keys(transcript)
	return newConn(stream, s.mode, c, send, receive), err
}

var (
	// errImpostor means that the listener does not know the secret.
	errImpostor = errors.New("the listener does not know the session's secret")
	// errNoSecret means that a client does not know the secret, or repeats another client's proof.
	errNoSecret = errors.New("it does not know the session's secret, or replays another client")
)

// accept is the accepter of modes signed and plain.
func (s *session) accept(c Socket, sessionNamed func()) (*Conn, error) {
	var hello [helloSize]byte
	if n, err := io.ReadFull(c, hello[:]); err != nil {
		return nil, fmt.Errorf("it sent %d of %d bytes: %w", n, helloSize, err)
	}
	named, isHello := bytes.CutPrefix(hello[:], []byte(magic))
	stream, isSession := bytes.CutPrefix(named, s.id[:])
	if !isHello {
		return nil, errors.New("it does not speak this protocol")
	}
	if !isSession {
		return nil, errors.New("it requests another session")
	}
	number := int(binary.BigEndian.Uint16(stream))
	if number >= s.streams {
		return nil, fmt.Errorf("it claims to be stream %d of %d", number, s.streams)
	}
	sessionNamed()
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // never fails
	transcript := s.transcript(hello[:], nonce[:])
	if _, err := c.Write(append(nonce[:], s.proof(labelListenerProof, transcript)...)); err != nil {
		return nil, err
	}
	var proof [proofSize]byte
	if _, err := io.ReadFull(c, proof[:]); err != nil {
		return nil, fmt.Errorf("it sent no proof: %w", err)
	}
	if !hmac.Equal(proof[:], s.proof(labelDialerProof, transcript)) {
		return nil, errNoSecret
	}
	receive, send, err := s.keys(transcript)
	return newConn(number, s.mode, c, send, receive), err
}

// transcript returns a hash of both ends' messages and of the session's mode.
func (s *session) transcript(hello, nonce []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(labelTranscript), []byte(s.mode), hello, nonce} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

func (s *session) proof(label string, transcript []byte) []byte {
	m := hmac.New(sha256.New, s.secret)
	m.Write([]byte(label))
	m.Write(transcript)
	return m.Sum(nil)
}

// keys derives the tag keys of both directions of one connection.
func (s *session) keys(transcript []byte) (dialer, listener *tagger, err error) {
	derive := func(label string) (*tagger, error) {
		key, err := hkdf.Key(sha256.New, s.secret, transcript, label, tagKeySize)
		if err != nil {
			return nil, err
		}
		return newTagger(key)
	}
	if dialer, err = derive(labelDialerKey); err == nil {
		listener, err = derive(labelListenerKey)
	}
	return dialer, listener, err
}
