// Package sysinfo reads facts about a Linux host.
//
//   - Root: the host's file system as an fs.FS, live or captured.
//   - Capture: a copy of the files and command output that facts are read from.
//   - Fact: a property of the host. It is "", 0 or empty if it cannot be read.
//   - System: all facts of a host.
//   - Usage: processor time used so far.
//
// It does not measure rates or take captures: package probe does.
package sysinfo
