// Package zfs knows what ZFS is, without touching one: names, versions,
// properties, argument lists of zfs(8) and zpool(8), parsers of what they
// print, resume tokens, send stream records, and typed errors.
//
// It runs no command and opens no file; package zfsexec does. Output formats
// are those of OpenZFS 2.1 to 2.4.
package zfs
