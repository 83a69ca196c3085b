// Package blockdev is block devices and image files.
package blockdev
