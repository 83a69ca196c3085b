package tcp

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"sync"
	"time"
)

// makeIdentities creates both certificates, puts the dialer's into the ticket and returns the
// listener's configuration.
func (t *Ticket) makeIdentities() (*tls.Config, error) {
	listener, err := newIdentity("zxfer listener")
	if err != nil {
		return nil, err
	}
	dialer, err := newIdentity("zxfer dialer")
	if err != nil {
		return nil, err
	}
	t.ServerPin = pinOf(listener.Certificate[0])
	t.ClientCert = dialer.Certificate[0]
	if t.ClientKey, err = x509.MarshalECPrivateKey(dialer.PrivateKey.(*ecdsa.PrivateKey)); err != nil {
		return nil, err
	}
	return pinnedConfig(listener, pinOf(t.ClientCert)), nil
}

// dialerConfig returns the dialer's configuration; nil unless the mode is tls.
func (t *Ticket) dialerConfig() (*tls.Config, error) {
	if t.Mode != TLS {
		return nil, nil
	}
	key, err := x509.ParseECPrivateKey(t.ClientKey)
	if err != nil {
		return nil, errors.New("the ticket's key is malformed")
	}
	own := tls.Certificate{Certificate: [][]byte{t.ClientCert}, PrivateKey: key}
	return pinnedConfig(own, t.ServerPin), nil
}

// newIdentity returns an ephemeral certificate. The peer checks only its pin, sent over the
// control channel.
func newIdentity(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: now.AddDate(0, 0, -1), NotAfter: now.AddDate(0, 0, 1),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// pinnedConfig returns the TLS configuration of one end. It accepts only the pinned peer
// certificate. It does not check names, dates (clocks may differ) and authorities.
func pinnedConfig(own tls.Certificate, pin []byte) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{own},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // VerifyConnection checks the pin instead
		SessionTicketsDisabled: true,
		// Bulk data only, so start with full records.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !bytes.Equal(pinOf(state.PeerCertificates[0].Raw), pin) {
				return errors.New("the peer's certificate is not the pinned one")
			}
			return nil
		},
	}
}

func pinOf(der []byte) []byte {
	sum := sha256.Sum256(der)
	return sum[:]
}

// maxTLSBytes is how many bytes of frames one end of a TLS connection sends. AES-GCM allows 2^24.5 records of
// 16 KiB per key, and crypto/tls never changes the key.
//
// https://www.rfc-editor.org/rfc/rfc8446#section-5.5
const maxTLSBytes = 360 << 30

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
