// Package transfer moves one stream from a Source to a Sink.
//
//   - Source: produces the stream. Sink: stores it.
//   - Stage: one step on the way, such as read, compress or send. Stages overlap.
//   - Ring: a bounded buffer between two stages. Piece: a numbered block in a ring.
//   - Meter: counts the bytes and waits of a stage. [LimitedBy] derives the bottleneck.
//   - Link: the connections to the other host (package tcp). Its ends: [Outgoing], [Incoming].
//   - Tail: the last bytes of a stream, withheld from the Sink until the end is verified.
//   - Lifecycle: runs one transfer, from its start to commit or abort. Package device uses it, too.
//   - Engine: the code that a Lifecycle runs: [Send], [Receive] and [Copy], which [Move] chooses, and those of package device.
//
// A Sink is committed only if the source succeeded and the byte and frame counts match. The
// digest must match, too, unless the receiver splices. Otherwise the Sink is aborted.
//
// Errors name the part that failed: the Source's or Sink's own error, a [*PeerError] from the
// other end, tcp.ErrConnectionLost for a broken network (only this one is worth a retry),
// tcp.ErrTampered, [ErrTotalsMismatch] or [ErrStall].
//
// The package does not know datasets or devices, does not define the network protocol
// (package tcp does), and retries nothing.
package transfer
