// Package transfertest tests implementations of package transfer's interfaces.
//
//   - [SourceConforms], [SinkConforms]: suites that every Source and Sink must pass.
//   - [Source]: a Source in memory that fails or hangs on demand.
//   - [Links]: both ends of a link over loopback. [Proxied], [Tamper]: a proxy that modifies bytes.
//
// It uses no network but loopback, and does not know datasets or devices.
package transfertest
