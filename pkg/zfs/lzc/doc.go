// Package lzc changes ZFS through libzfs_core: a whole list of snapshots, holds or bookmarks in
// one transaction, with an error number for each name instead of a message to parse.
//
//   - helper: a Python process that calls libzfs_core through pyzfs, OpenZFS' Python binding.
//     Nothing is linked in.
//   - Client: a cli.Backend that sends requests to a helper, one at a time.
//   - failure: the error number that libzfs_core returns for one name of a request.
//
// It sends only small incremental streams. For requests that libzfs_core does not support (size
// of a resumed stream, names by GUID), it runs the command line through package cli. If pyzfs is
// missing, Start fails, and the caller uses package cli instead.
package lzc
