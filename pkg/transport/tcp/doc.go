// Package wire is authenticated TCP for one transfer between two hosts that
// already trust each other over a control channel: a listener that accepts
// exactly the connections it was opened for, a handshake in which both ends
// prove that they know the session's secret, and one frame format for all
// modes. docs/protocol.md specifies every byte of it.
//
// # Who may connect
//
// A [Listener] makes a [Ticket]: address, session, secret and, for mode tls,
// certificates. Whoever holds the ticket can [Dial]; everybody else is dropped
// without a slot lost. Tickets are valid for one link and die with the
// listener.
//
// # What a Link promises
//
// A [Link] is N connections whose [Conn]s carry frames. In modes signed and
// tls no byte of a frame is handed on before it was authenticated, and a frame
// that was changed, dropped, repeated or moved within its connection is
// [ErrTampered]. In mode plain that holds for control frames only. In every
// mode a connection that ends without an authenticated End or Abort frame is
// [ErrCut]: a bare end of file never means success.
//
// The package moves frames, not streams: order across connections, buffering
// and what the bytes mean are package transfer's. It never retries a transfer
// and knows nothing of datasets or devices.
package tcp
