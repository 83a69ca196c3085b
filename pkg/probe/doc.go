// Package probe inspects a running host and measures the rates of its parts.
//
//   - Capture: an archive of the files and command output that package sysinfo
//     reads facts from.
//   - Measurement: a test of about the requested duration. It ends with its
//     context and leaves no process, listener or file behind.
//   - Ceiling: the result of a measurement, the maximum rate of one part of a host.
//   - Noise: incompressible data that a measurement moves.
//
// It does not judge the results: package preflight does.
package probe
