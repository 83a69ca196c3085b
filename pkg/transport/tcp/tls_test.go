package tcp

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestTLSIsBoundToItsConnection puts a network attacker between both ends. The attacker knows the session, has the
// secret of another one, and ends TLS on both sides.
func TestTLSIsBoundToItsConnection(t *testing.T) {
	t.Parallel()
	l, log := listen(t, Offer{Mode: TLS})
	ticket := l.Ticket()
	attacker := ticket
	other, _ := listen(t, Offer{Mode: TLS})
	attacker.Secret = other.Ticket().Secret
	s, err := attacker.check()
	require.NoError(t, err)
	accept, err := s.accepter()
	require.NoError(t, err)
	middle, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer middle.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := middle.Accept()
		if err == nil {
			defer c.Close()
			_, err = accept(c.(*net.TCPConn), func() {})
		}
		accepted <- err
	}()
	_, err = dialStream(ticket, middle.Addr().String(), 0)
	require.ErrorIs(t, err, errImpostor)
	require.Error(t, <-accepted)
	_, err = dialStream(attacker, ticket.Address, 0)
	require.ErrorIs(t, err, errImpostor)
	require.Eventually(t, func() bool { return strings.Contains(log.text(), "dropped") }, testenv.Timeout(), time.Millisecond)
	require.Zero(t, l.accepted)
}

// TestTLSClientsWithoutKey connects clients that accept any listener and know the session, but not the key of the
// dialer. Others have the key, and name the session in a wrong way.
func TestTLSClientsWithoutKey(t *testing.T) {
	t.Parallel()
	l, log := listen(t, Offer{Mode: TLS, Streams: 2})
	ticket := l.Ticket()
	s, err := ticket.check()
	require.NoError(t, err)
	good, err := s.tlsConfig(labelDialerIdentity, labelListenerIdentity, errImpostor)
	require.NoError(t, err)
	good.VerifyConnection = nil
	good.NextProtos = []string{s.alpn(1)}
	listener, err := s.tlsConfig(labelListenerIdentity, labelDialerIdentity, errNoSecret)
	require.NoError(t, err)
	_, own, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	foreign := *s
	foreign.id[0] ^= 1
	const impostor, unknown = "does not know the session's secret", "it requests another session or stream"
	for _, tt := range []struct {
		name, why string
		change    func(*tls.Config)
	}{
		{"no certificate", "didn't provide a certificate", func(c *tls.Config) { c.Certificates = nil }},
		{"own certificate", impostor, func(c *tls.Config) { c.Certificates = []tls.Certificate{ecdsaCertificate(t)} }},
		{"dialer's certificate with another key", "invalid signature", func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{Certificate: good.Certificates[0].Certificate, PrivateKey: own}}
		}},
		{"listener's certificate", impostor, func(c *tls.Config) { c.Certificates = listener.Certificates }},
		{"no application protocol", unknown, func(c *tls.Config) { c.NextProtos = nil }},
		{"two streams", unknown, func(c *tls.Config) { c.NextProtos = []string{s.alpn(0), s.alpn(1)} }},
		{"stream that does not exist", unknown, func(c *tls.Config) { c.NextProtos = []string{s.alpn(2)} }},
		{"other session", unknown, func(c *tls.Config) { c.NextProtos = []string{foreign.alpn(1)} }},
		{"other protocol", unknown, func(c *tls.Config) { c.NextProtos = []string{"h2"} }},
		{"TLS 1.2", "unsupported versions", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }},
	} {
		config := good.Clone()
		tt.change(config)
		c, err := tls.Dial("tcp", ticket.Address, config)
		if err == nil { // the listener has not yet seen the client's certificate
			_, _ = c.Write([]byte("data"))
			_, err = c.Read(make([]byte, 1))
			_ = c.Close()
		}
		require.Error(t, err, tt.name)
		require.Eventually(t, func() bool {
			lines := strings.Split(log.text(), "\n")
			return strings.Contains(lines[len(lines)-1], tt.why)
		}, testenv.Timeout(), time.Millisecond, "%s: %s", tt.name, log.text())
	}
	require.Zero(t, l.accepted)
	c, err := tls.Dial("tcp", ticket.Address, good)
	require.NoError(t, err, "the other clients failed for their reason")
	defer c.Close()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.conns[1] != nil
	}, testenv.Timeout(), time.Millisecond)
}

// ecdsaCertificate returns a certificate of another kind of key.
func ecdsaCertificate(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestCorkGrows expects that a connection reads into a small buffer until a read fills it.
func TestCorkGrows(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer out.Close()
	in, err := l.Accept()
	require.NoError(t, err)
	defer in.Close()
	k := newFrameBuffer(in.(*net.TCPConn))
	read := func(sent int) {
		text := make([]byte, sent)
		for i := range text {
			text[i] = byte(i * 31)
		}
		_, err := out.Write(text)
		require.NoError(t, err)
		got := make([]byte, sent)
		for n := 0; n < sent; n += 1000 { // as TLS does, less than is available
			_, err = io.ReadFull(k, got[n:min(n+1000, sent)])
			require.NoError(t, err)
		}
		require.Equal(t, text, got)
	}
	read(1000)
	require.Equal(t, initialReadSize, k.in.Size())
	read(8 * initialReadSize)
	read(1)
	require.Equal(t, frameBufferSize, k.in.Size())
}
