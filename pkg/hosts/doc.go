// Package hosts runs operations on hosts. Callers decide which operations to run and in which
// order.
//
// Nouns:
//   - Host: the operations that zxfer needs on any host. They are requests such as "receive into
//     this dataset", not commands, so that a remote host can enforce a policy.
//   - Role: an interface with further operations, such as Devices or Healer, see RoleOf.
//   - Local: the Host of this computer. The agent package has its remote counterpart, which
//     forwards each operation to a Local there.
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
