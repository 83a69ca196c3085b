// Package transfer moves a stream from a Source to a Sink through stages that
// overlap: bounded rings between them, and a meter at each which tells how
// long the stage waited for its input and for its output. The stage that waits
// for neither is the bottleneck (see [LimitedBy]).
//
// [Send] and [Receive] are the two halves of a transfer over a wire.Link,
// [Copy] is a whole one on one host. A Sink is committed only after the
// source's exit, the byte and frame counts and, where the bytes were seen, the
// digest all matched; in any other case it is aborted and, if it asks for
// that, never sees the last bytes of the stream.
//
// Whatever moves, its course is a [Life]: start, watch, stall, one cause, unwind,
// then commit or abandon, and the last word to the other end. What an engine
// needs beside it is here, too: both halves of a link ([Outgoing], [Incoming]),
// meters, the bandwidth limit and compression. Package device has the other
// engine, which moves blocks in any order.
//
// Errors tell which part failed: what the Source or Sink itself returned, a
// [*PeerError] for what the other end reported, wire.ErrCut for a network that
// broke (the only kind that another try may mend), wire.ErrTampered,
// [ErrMiscounted] and [ErrStall].
//
// The package knows streams and frames, neither datasets nor devices. What
// crosses the network is package wire's. It retries nothing.
package transfer
