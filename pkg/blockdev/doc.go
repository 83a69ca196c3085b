// Package blockdev is the block devices and image files of this host: facts
// about them, the rules of when one may be overwritten, guarded opens, reads
// and writes past the page cache, block hashes, and the journal of an
// interrupted copy.
//
// It moves nothing by itself: the engine is package transfer's. What it knows
// of a device it reads from sysfs and procfs; signatures are probed by
// util-linux's wipefs. It runs on Linux only.
package blockdev
