// Package files reads the files of a snapshot through a private mount. It compares them or
// transfers them as an archive.
//
// Nouns:
//   - Query and Digest: a request for the digest of files, and the reply. Read computes it.
//   - Part: one of the digest's 256 groups of files. A second query lists one part to find the files
//     that differ.
//   - Archive: a request for files as a tar stream. A Packer produces the stream.
//   - UnpackOptions: the directory for the files. An Unpacker writes them.
//   - Account: the counts of a transfer.
//   - Walk: a visit of files in the order of their paths.
//
// A mount belongs to a file descriptor, not to a path, so it ends with the process. The package
// opens each file relative to an open directory and never follows symbolic links. It does not
// restore devices, pipes and sockets.
package files
