// Package tcp makes authenticated TCP connections between two hosts that already trust each
// other over a control channel. docs/reference/protocol-data.md specifies every byte.
//
//   - Offer: the description of a listener to open.
//   - Listener: accepts the connections of one link and drops all others.
//   - Ticket: authorizes the dialer: address, session and secret. It is valid for one link, until the
//     listener closes.
//   - Link: the N connections of one transfer. [Conn]: one of them, numbered as a stream.
//   - Mode: the protection of the data: signed, tls or plain.
//   - Frame: a header, a payload and, depending on the mode, a tag. Block: the buffer of a frame.
//   - Account: the sender's totals, in the End frame.
//
// Modes signed and tls authenticate every frame before its bytes are passed on. A changed,
// dropped, repeated or moved frame is [ErrTampered]. Mode plain guarantees that only for
// control frames. In every mode, a connection that ends without an authenticated End or Abort
// frame is [ErrConnectionLost]: a bare end of file never means success.
//
// The package moves frames, not streams. Package transfer orders and buffers them, and
// interprets their bytes. The package never retries a transfer and does not know datasets or
// devices.
package tcp
