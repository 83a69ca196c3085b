// Package zfsexec runs zfs(8) and zpool(8): listings, streams, and the small
// changes that a transfer needs. It decides nothing, parses nothing and words
// no error by itself; package zfs does.
//
// Every child has LC_ALL=C, a process group of its own and a bounded capture
// of its stderr, and ends with its context and with this process (see
// process). It never runs a shell, and never rolls back, destroys datasets or
// forces anything unless a spec's field says so.
package cli
