// Package sysinfo reads facts about a Linux host.
//
//   - Root: the host's file system as an fs.FS, live or captured.
//   - Capture: a copy of the files and command output that facts are read from.
//   - Fact: a property of the host. If it cannot be read, it is "", 0 or empty,
//     without an error.
//   - System: all facts of a host.
//   - Usage: processor time used so far.
//
// It does not measure or change anything, and does not take captures: package probe
// does.
package sysinfo
