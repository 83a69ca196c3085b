// Package zfstest gives tests pools on real ZFS, and forged streams.
//
//   - Pool: a pool with a random name on a file in its own tmpfs. It is destroyed when its test
//     ends. No other pool is touched.
//   - Stream, Record: a send stream that a test can modify.
//   - Attack: a stream of a hostile sender. A Forger builds attacks.
//
// It does not install ZFS: without it, tests skip.
package zfstest
