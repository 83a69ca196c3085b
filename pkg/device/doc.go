// Package device inspects and copies Linux block devices and regular image files.
//
//   - Facts: the properties of a device or file, as [Inspect] reads them from
//     sysfs, procfs, udev and wipefs. (blkid -p fails if two signatures conflict;
//     wipefs lists all.)
//   - Signature: a file system, partition table, RAID or volume header found on a
//     device.
//   - Source, Target: a device or image file opened for reading or writing. A
//     target device is held exclusively.
//   - Task: one copy, with the source, the target, the options and the user's
//     consent ([Allow]).
//   - Block: the unit of a copy. Blocks are read, hashed, sent, written, synced and
//     verified in any order.
//   - Sum: the hash of a block. Digest: the hash of all sums of a device. Mark: the
//     xxh3-128 of a block's data, which protects it from the source's memory to the
//     target's medium.
//   - Journal: the record, on the target's host, of the blocks that are stored. An
//     interrupted copy resumes from it.
//   - Present block: a block that the target already holds, so it is not sent.
//   - Volume copy: a snapshot of a ZFS volume on a target, which a record next to an image
//     file, or in the state directory for a device, identifies. Its source is not a device:
//     the caller passes writes and zeroed ranges to a [VolumeTarget].
//   - Stream: standard input or output as one end. It is copied in order and cannot
//     be resumed.
//
// Sums and digests are xxh3 if [Options].Quick or NoVerify is set, otherwise
// BLAKE3. The zxfer command uses xxh3 by default. Delta copies always use BLAKE3,
// whose digest is the one that b3sum prints: its tree allows blocks to be hashed
// independently.
//
// The package does not open connections, retry, or ask for consent. The caller
// provides the link. transfer.Lifecycle runs a copy: progress, stall detection, errors
// and cleanup.
package device
