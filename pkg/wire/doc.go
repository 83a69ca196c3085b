// Package wire is authenticated TCP for one transfer: a listener that accepts
// exactly the connections it was opened for, a handshake that proves knowledge
// of the session's secret, and one frame format for all modes. docs/protocol.md
// specifies what crosses the network.
//
// It moves frames, not streams: order, buffers and what the bytes mean are
// package transfer's.
package wire
