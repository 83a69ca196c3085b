// Package cli runs zfs(8) and zpool(8) for listings, streams, and the changes that a transfer
// needs.
//
// Nouns:
//   - CLI: the two tools of one host.
//   - Backend: the changes that the CLI or package lzc can do.
//   - Process: a running child. It has LC_ALL=C, a separate process group and a bounded copy of its
//     stderr. It ends with its context and with this process.
//   - Stream, SendSource and ReceiveSink: a running zfs send or zfs receive.
//   - RemoteRunner: runs the tools on another host.
//
// The package does not make decisions, parse output or phrase errors; package zfs does. It never
// rolls back, destroys datasets or forces anything unless the request says so. Only restore tests
// run a shell.
package cli
