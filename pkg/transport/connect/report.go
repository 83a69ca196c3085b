package connect

import (
	"strings"

	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Report describes the path and the reason for it.
type Report struct {
	Mode    string `json:"mode"` // local, signed, tls, plain, ssh, nc
	Why     string `json:"why"`
	Streams int    `json:"streams,omitempty"`
	Dial    string `json:"dial,omitempty"` // which side dials
	Address string `json:"address,omitempty"`
}

// Report returns the report for a link. encrypted and open tell which kinds of streams will use
// it.
func (l Link) Report(encrypted, open bool) Report {
	r := Report{Mode: l.Wire, Why: l.why, Streams: l.Streams, Dial: l.dial, Address: l.address}
	if l.Wire == transport.Auto {
		switch {
		case encrypted && open:
			r.Mode = "signed, tls"
		case encrypted:
			r.Mode, r.Why = string(tcp.Signed), "raw streams of encrypted data: contents are secret already"
		case open:
			r.Mode, r.Why = string(tcp.TLS), "the data is not encrypted by itself"
		}
	}
	if l.Wire == transport.SSH && len(l.rejected) > 0 && !l.noPath {
		r.Why += "; no other way passes"
	}
	if strings.Contains(r.Address, ":") {
		r.Address = "[" + r.Address + "]"
	}
	if l.Ports.Low != 0 && l.listener != nil {
		r.Address += ":" + l.Ports.String()
	}
	return r
}
