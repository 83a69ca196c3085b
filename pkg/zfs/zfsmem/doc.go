// Package zfsmem simulates the ZFS of a host in memory, for tests: pools with datasets, snapshots,
// bookmarks, holds, clones and partially received state. Its streams have the format of zfs send.
// A site.Local uses it like real pools.
//
//   - Host: the ZFS of one host.
//   - write: one block that was written to a dataset. A dataset has a single object.
//   - content: the writes that a snapshot holds. head: those that a dataset holds now.
//
// It does not encrypt, compress or mount.
package zfsmem
