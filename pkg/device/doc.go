// Package device is block devices and regular image files on Linux, and the copy
// of one to another.
//
//   - What is known of a device: [Inspect] and its [Facts], from sysfs and
//     procfs, and what lies on it, from wipefs of util-linux, which lists every
//     signature that libblkid knows (blkid -p gives up where two of them
//     contradict each other).
//   - The rules: what speaks against a copy ([Task.CheckSource], [Task.CheckTarget]), and
//     how a device is opened so that neither the wrong one nor one in use is
//     written ([OpenSource], [OpenTarget]).
//   - The copy of a [Task]: [Copy] reads, hashes, sends, writes, syncs and reads
//     back blocks in any order, this end's part of it or all. Its [Journal] says
//     what is stored, so that a copy that was cut off goes on ([StateOf]). Where
//     one end is a standard stream, it is copied in order instead.
//   - [DigestOf] hashes a device, to be compared with another one.
//
// Digests are BLAKE3, whose tree lets every block be hashed by itself.
//
// It opens no connections, tries nothing again and asks nobody for consent: a
// link is the caller's, what the user allowed is [Allow], and the course of a
// copy (watch, stall, cause, unwind) is that of every transfer, transfer.Life.
package device
