// Package device is block devices and regular image files on Linux: what
// is known of them, which rules speak against writing to one, how they are
// opened so that neither the wrong device nor one in use is written, how they
// are read, written, zeroed, synced and read back past the page cache, the
// BLAKE3 tree over their blocks, the journal of what is stored, and LVM
// snapshots of a mounted volume.
//
// It moves no data from one device to another, knows of no network and asks
// nobody for consent: package transfer copies, and the caller passes what the
// user allowed as [Allow].
//
// Facts come from sysfs and procfs, and what lies on a device from wipefs of
// util-linux, which lists every signature that libblkid knows (blkid -p gives
// up where two of them contradict each other).
package device
