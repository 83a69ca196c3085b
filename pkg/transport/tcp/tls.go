package tcp

import (
	"bufio"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync"
)

// In mode tls, the handshake of each connection is that of TLS 1.3. Each end derives the keys of both ends'
// certificates from the session's secret, and accepts only the other end's key. The application protocol (ALPN) in
// the dialer's first message names the session and the stream. TLS authenticates it together with all other messages.
const (
	labelDialerIdentity   = Protocol + " tls dialer"
	labelListenerIdentity = Protocol + " tls listener"
)

// alpn returns the application protocol of a stream.
func (s *session) alpn(stream int) string { return fmt.Sprintf("%s %x %d", Protocol, s.id, stream) }

// errUnknownALPN means that a client of mode tls does not name one stream of the session.
var errUnknownALPN = errors.New("it requests another session or stream")

// tlsHandshaker returns the handshaker of mode tls.
func (s *session) tlsHandshaker() (handshaker, error) {
	config, err := s.tlsConfig(labelDialerIdentity, labelListenerIdentity, errImpostor)
	if err != nil {
		return nil, err
	}
	return func(c Socket, stream int) (*Conn, error) {
		own := config.Clone()
		own.NextProtos = []string{s.alpn(stream)}
		t := tls.Client(newFrameBuffer(c), own)
		if err := t.Handshake(); err != nil {
			return nil, err
		}
		return newTLSConn(stream, t), nil
	}, nil
}

// tlsAccepter returns the accepter of mode tls.
func (s *session) tlsAccepter() (accepter, error) {
	config, err := s.tlsConfig(labelListenerIdentity, labelDialerIdentity, errNoSecret)
	if err != nil {
		return nil, err
	}
	for i := range s.streams {
		config.NextProtos = append(config.NextProtos, s.alpn(i))
	}
	return func(c Socket, sessionNamed func()) (*Conn, error) {
		own := config.Clone()
		own.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			if len(h.SupportedProtos) != 1 || !slices.Contains(config.NextProtos, h.SupportedProtos[0]) {
				return nil, errUnknownALPN
			}
			sessionNamed()
			return nil, nil // use own
		}
		t := tls.Server(newFrameBuffer(c), own)
		if err := t.Handshake(); err != nil {
			return nil, err
		}
		return newTLSConn(slices.Index(config.NextProtos, t.ConnectionState().NegotiatedProtocol), t), nil
	}, nil
}

// identity derives the private key of an end.
func (s *session) identity(label string) (ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, s.secret, s.id[:], label, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// tlsConfig returns the TLS configuration of one end. It accepts only a peer that has the peer's key, and otherwise
// fails with impostor. It does not check names, dates (clocks may differ) and issuers.
func (s *session) tlsConfig(own, peer string, impostor error) (*tls.Config, error) {
	key, err := s.identity(own)
	if err != nil {
		return nil, err
	}
	peerKey, err := s.identity(peer)
	if err != nil {
		return nil, err
	}
	pin := peerKey.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // VerifyConnection checks the key instead
		SessionTicketsDisabled: true,
		// Bulk data only, so start with full records.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !pin.Equal(state.PeerCertificates[0].PublicKey) {
				return impostor
			}
			return nil
		},
	}, nil
}

// maxTLSBytes is how many bytes of frames one end of a TLS connection sends. AES-GCM allows 2^24.5 records of
// 16 KiB per key, and crypto/tls never changes the key.
//
// https://www.rfc-editor.org/rfc/rfc8446#section-5.5
const maxTLSBytes = 360 << 30

// newTLSConn returns a connection after its handshake.
func newTLSConn(stream int, t *tls.Conn) *Conn {
	k := t.NetConn().(*frameBuffer)
	c := &Conn{stream: stream, mode: TLS, tcp: k.Socket, rw: t, records: k, keyed: maxTLSBytes}
	k.readWait, k.writeWait = &c.readWait, &c.writeWait
	return c
}

// frameBufferSize is the buffer in bytes for reads and writes of TLS records. Reads start with
// initialReadSize: most streams of many small ones end before it is full, and a sender receives
// little.
const (
	frameBufferSize = 256 << 10
	initialReadSize = 16 << 10
)

// frameBuffer sits between crypto/tls and its connection. crypto/tls reads and writes each
// record of 16 KiB separately. frameBuffer combines many of them in one system call.
type frameBuffer struct {
	Socket
	in        *bufio.Reader
	outgrown  bool // a read has filled the initial buffer
	readWait  *WaitTimer
	writeWait *WaitTimer

	mu   sync.Mutex // crypto/tls writes alerts while it reads records
	held bool
	out  []byte
}

func newFrameBuffer(c Socket) *frameBuffer {
	k := &frameBuffer{Socket: c, readWait: new(WaitTimer), writeWait: new(WaitTimer)}
	k.in = bufio.NewReaderSize(meteredReader{k}, initialReadSize)
	return k
}

// meteredReader reads from the connection and counts the wait.
type meteredReader struct{ k *frameBuffer }

func (r meteredReader) Read(p []byte) (int, error) {
	r.k.readWait.Start()
	defer r.k.readWait.Stop()
	n, err := r.k.Socket.Read(p)
	r.k.outgrown = r.k.outgrown || n >= initialReadSize
	return n, err
}

func (k *frameBuffer) Read(p []byte) (int, error) {
	if k.outgrown && k.in.Size() < frameBufferSize && k.in.Buffered() == 0 {
		k.in = bufio.NewReaderSize(meteredReader{k}, frameBufferSize)
	}
	return k.in.Read(p)
}

// hold buffers writes, up to frameBufferSize, until flush.
func (k *frameBuffer) hold() {
	k.mu.Lock()
	k.held = true
	k.mu.Unlock()
}

func (k *frameBuffer) flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = false
	return k.push()
}

func (k *frameBuffer) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.out)+len(p) > frameBufferSize {
		if err := k.push(); err != nil {
			return 0, err
		}
	}
	k.out = append(k.out, p...)
	if !k.held {
		return len(p), k.push()
	}
	return len(p), nil
}

func (k *frameBuffer) push() error {
	if len(k.out) == 0 {
		return nil
	}
	k.writeWait.Start()
	_, err := k.Socket.Write(k.out)
	k.writeWait.Stop()
	k.out = k.out[:0]
	return err
}
