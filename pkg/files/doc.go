// Package files reads the files of a snapshot where nobody else sees it, and
// compares them or brings them back.
//
// It mounts nothing at a path: the mount belongs to a descriptor, and is gone
// with it, whatever ends the process. What is walked and written is opened below
// a directory that is open, and no symbolic link is followed.
package files
