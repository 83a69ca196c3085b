package transport

import (
	"zxfer/pkg/size"
)

// Settings describe how data moves between two hosts. The zero value leaves everything to
// zxfer. The TOML tags are keys of a job file's [job.transfer].
type Settings struct {
	Wire        string `toml:"wire,omitempty"`         // auto, signed, tls, plain, ssh, nc; "" = auto
	TrustedLink bool   `toml:"trusted_link,omitempty"` // consent to plain and nc
	Streams     int    `toml:"streams,omitempty"`      // TCP connections, 0 = chosen
	Dial        string `toml:"dial,omitempty"`         // auto, source, target; "" = auto
	DataAddress string `toml:"data_address,omitempty"` // of the listening host
	Ports       Ports  `toml:"ports,omitempty"`        // of the listening host
	Socket

	Compress        string    `toml:"compress,omitempty"` // auto, zstd[:N], off; "" = auto
	CompressThreads int       `toml:"compress_threads,omitempty"`
	Buffer          size.Size `toml:"buffer,omitempty"` // bytes on each side, 0 = chosen

	RSH         string `toml:"rsh,omitempty"`          // remote shell command, "" = ssh
	NoBootstrap bool   `toml:"no_bootstrap,omitempty"` // do not copy zxfer to a host that lacks it

	// Bandwidth limits all connections of a stream together, in bytes per second; 0 = no limit.
	Bandwidth size.Size `toml:"bandwidth,omitempty"`
	// BandwidthWindows override Bandwidth at times of the day. The first matching window
	// applies. A stream keeps the limit that it started with.
	BandwidthWindows []BandwidthWindow `toml:"bandwidth_window,omitempty"`
}

// Retries is the default number of retries of an interrupted transfer, MaxRetries the largest.
const (
	Retries    = 5
	MaxRetries = 1_000_000
	// MaxParallel bounds the datasets that move at the same time.
	MaxParallel = 64
)

// Words of Wire. The modes "signed" and "tls" of package tcp are also valid.
const (
	Auto  = "auto"  // signed for raw streams of encrypted data, tls otherwise
	Plain = "plain" // only connections are authenticated
	SSH   = "ssh"   // through the ssh connection
	NC    = "nc"    // with nc on a host without zxfer

	off = "off" // of Compress
)

// Socket holds the options of every data socket at both ends. Offers and tickets carry it.
type Socket struct {
	// Window is SO_RCVBUF and SO_SNDBUF in bytes; 0 = the kernel's autotuning.
	Window size.Size `json:"window,omitempty" toml:"window,omitempty"`
	// Congestion is TCP_CONGESTION; "" = the kernel's default.
	Congestion string `json:"congestion,omitempty" toml:"congestion,omitempty"`
}
