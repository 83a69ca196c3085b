// Package way says how bytes cross between two hosts: by which wire, over how
// many connections, who listens where, how fast, compressed or not, and how the
// other host is reached at all. Every verb and the job file take their settings
// from it. It holds what was asked for; what is chosen where nothing was asked
// is package job's.
package transport

import (
	"zxfer/pkg/size"
)

// Settings is how bytes cross. The zero value lets all be chosen. Its TOML is that of
// a job file's [job.transfer].
type Settings struct {
	Wire        string `toml:"wire,omitempty"`         // auto, signed, tls, plain, ssh, nc; "" = auto
	TrustedLink bool   `toml:"trusted_link,omitempty"` // consent to plain and nc
	Streams     int    `toml:"streams,omitempty"`      // TCP connections, 0 = chosen
	Dial        string `toml:"dial,omitempty"`         // auto, source, target; "" = auto
	DataAddress string `toml:"data_address,omitempty"` // of the listening side
	Ports       Ports  `toml:"ports,omitempty"`        // of the listening side
	Socket

	Compress        string    `toml:"compress,omitempty"` // auto, zstd[:N], off; "" = auto
	CompressThreads int       `toml:"compress_threads,omitempty"`
	Buffer          size.Size `toml:"buffer,omitempty"` // on each side, 0 = chosen

	RSH         string `toml:"rsh,omitempty"`          // remote shell command, "" = ssh
	NoBootstrap bool   `toml:"no_bootstrap,omitempty"` // do not copy zxfer to a host that lacks it

	// Bandwidth limits all connections of a stream together, bytes per
	// second; 0 = none.
	Bandwidth size.Size `toml:"bandwidth,omitempty"`
	// BandwidthWindows are times of the day with another limit; the first that holds
	// the time counts. A stream keeps the limit that it began with.
	BandwidthWindows []BandwidthWindow `toml:"bandwidth_window,omitempty"`
}

// How often what was cut is tried again before it is given up, unless that is
// asked for, and at most.
const (
	Retries    = 5
	MaxRetries = 1_000_000
	// MaxParallel bounds the datasets that move at once.
	MaxParallel = 64
)

// Words that matter beyond the table. Of Way.Wire there are also the modes of
// package wire, "signed" and "tls".
const (
	Auto  = "auto"  // of Wire: signed for raw streams of encrypted data, tls for the rest
	Plain = "plain" // only connections are authenticated
	SSH   = "ssh"   // through the remote shell's own connection
	NC    = "nc"    // by the plain tools of a host without zxfer

	off = "off" // of Compress
)

// Socket is what is asked of every data socket, on both ends: offers and tickets
// carry it.
type Socket struct {
	// Window is SO_RCVBUF and SO_SNDBUF in bytes; 0 = the kernel's autotuning.
	Window size.Size `json:"window,omitempty" toml:"window,omitempty"`
	// Congestion is TCP_CONGESTION; "" = the kernel's default.
	Congestion string `json:"congestion,omitempty" toml:"congestion,omitempty"`
}
