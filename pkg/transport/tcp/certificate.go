package tcp

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
