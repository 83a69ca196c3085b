// Package zfs describes OpenZFS 2.1 to 2.4: names, properties, argument lists of zfs(8) and
// zpool(8), parsers of their output, resume tokens, send streams and typed errors. It runs no
// command and opens no file: packages cli and lzc do.
//
//   - dataset: a filesystem or volume. A listing holds the datasets of one host.
//   - version: a snapshot or bookmark of a dataset, identified by its GUID.
//   - incremental source: the version that an incremental stream starts from.
//   - stream, package, record: see record.go.
//   - resume token: the position at which an interrupted stream can be resumed.
//   - carried property: a property whose value the other host chose.
//   - drill clone: a temporary clone for a restore test.
//   - diverged copy: a copy that was renamed because it no longer matches its source.
//   - orphan: a copy whose source dataset was deleted.
package zfs
