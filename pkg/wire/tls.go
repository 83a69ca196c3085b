package wire

import (
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
	"time"
)

// identity makes an ephemeral certificate. Nothing in it is checked but that
// it is the very one: it is pinned over the control channel.
func identity(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(365 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func pinOf(der []byte) []byte {
	sum := sha256.Sum256(der)
	return sum[:]
}

// pinned returns a TLS configuration for both ends: own certificate, and
// exactly one that the peer may have. Names, dates and authorities are not
// checked (clocks of two hosts may differ); the pin is stronger.
func pinned(own tls.Certificate, pin []byte) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{own},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // replaced by VerifyPeerCertificate
		SessionTicketsDisabled: true,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			if len(raw) == 0 || !bytes.Equal(pinOf(raw[0]), pin) {
				return errors.New("the peer's certificate is not the expected one")
			}
			return nil
		},
	}
}

// dialerIdentity takes the dialling end's certificate out of a ticket.
func (t *Ticket) dialerIdentity() (tls.Certificate, error) {
	key, err := x509.ParseECPrivateKey(t.ClientKey)
	if err != nil {
		return tls.Certificate{}, errors.New("the ticket's key is malformed")
	}
	return tls.Certificate{Certificate: [][]byte{t.ClientCert}, PrivateKey: key}, nil
}
