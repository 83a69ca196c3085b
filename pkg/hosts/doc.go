// Package hosts runs operations on hosts. Callers decide which operations to run and in which
// order.
//
// Nouns:
//   - Op: an operation on a host, such as "receive this stream into that dataset". It is not a
//     command, so that a remote host can enforce a policy. operations.go has the table of all Ops.
//   - Request: one run of an Op with its arguments and its answer.
//   - Host: runs Requests. Call, Watch and Run make one and run it.
//   - Local: the Host of this computer. Package agent has its remote counterpart, which forwards each
//     Request to a Local there. Package agentless has a host without zxfer, which runs the plain Ops.
//   - Task: a host's part of a transfer, between a source end (From) and a target end (To).
//   - Back end: the program that a Local changes ZFS with, libzfs_core or zfs(8).
//   - Opener: connects to the host at an Address.
//   - Conn: a connection to one host. It is opened on first use, shared by all users, and opened
//     again after a loss.
//   - Set: the connections of one command.
//
// Conn.Retry repeats an interrupted operation once. The package retries nothing else, and does not
// know how hosts are reached.
package hosts
