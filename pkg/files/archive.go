package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Archive requests files of a snapshot as a tar archive (PAX). The files are in walk order, so the
// archive can start after any file.
type Archive struct {
	Snapshot string   `json:"snapshot"` // "pool/a@x"
	Paths    []string `json:"paths"`    // below the snapshot's root: files, or folders with all descendants; "" = all
	KeyFile  string   `json:"key_file,omitempty"`
	// After is the archive name of the last file to skip. Its folders are still included.
	After string `json:"after,omitempty"`
	// Names omits the contents.
	Names bool `json:"names,omitempty"`
}

// Into says where to unpack files.
type Into struct {
	Directory string `json:"directory"` // absolute path; created if missing
	// Overwrite replaces existing files that differ. Without it, such a file is an error.
	Overwrite bool `json:"overwrite,omitempty"`
	// Look is a dry run: it changes nothing and returns the expected Account.
	Look bool `json:"look,omitempty"`
}

// Account counts the files of a transfer. Lists have at most MaxProblems names.
type Account struct {
	New      uint64   `json:"new"`             // files that did not exist
	Same     uint64   `json:"same"`            // files with the same size and time, which were skipped
	Replaced uint64   `json:"replaced"`        // files that existed and differed
	Bytes    uint64   `json:"bytes"`           // size of the files that were not skipped
	Names    []string `json:"names,omitempty"` // first files that were not skipped
	Differ   []string `json:"differ,omitempty"`
	// Blocked are files whose path is a folder, or folders whose path is another kind of file.
	Blocked []string `json:"blocked,omitempty"`
	// Unfinished reports that an interrupted transfer left folders without their attributes.
	Unfinished bool `json:"unfinished,omitempty"`
	// Special counts devices, pipes and sockets, which are skipped.
	Special uint64 `json:"special,omitempty"`
	// Privileged counts files with setuid, setgid or capabilities, which were kept.
	Privileged uint64 `json:"privileged,omitempty"`
	// Disowned reports that owners were not kept, because only root may change them.
	Disowned bool `json:"disowned,omitempty"`
	// After is the last skipped file before the first one that is not skipped. Rest is the size in
	// bytes of all files after it.
	After string `json:"after,omitempty"`
	Rest  uint64 `json:"rest,omitempty"`
	Failures
}

// With returns the account of the target with that of the source added.
func (a Account) With(source Account) Account {
	a.Special += source.Special
	a.Problems = slices.Concat(source.Problems, a.Problems)
	a.Failed += source.Failed
	return a
}

// appendLimited adds a name to a list of fewer than MaxProblems.
func appendLimited(list *[]string, name string) {
	if len(*list) < MaxProblems {
		*list = append(*list, printablePath(name))
	}
}

// Check returns an error if the request is invalid.
func (a Archive) Check() error {
	if len(a.Paths) == 0 {
		return errors.New("no path was named")
	}
	if a.KeyFile != "" && !path.IsAbs(a.KeyFile) {
		return fmt.Errorf("the key file %q is no absolute path", a.KeyFile)
	}
	_, err := a.roots()
	return err
}

// roots returns the paths in archive order. The archive name of each is its last part.
func (a Archive) roots() (roots []string, err error) {
	for _, p := range a.Paths {
		at, err := clean(p)
		if err != nil {
			return nil, err
		}
		roots = append(roots, at)
	}
	slices.SortFunc(roots, func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	for i, at := range roots {
		if at == "." && len(roots) > 1 {
			return nil, errors.New("all files were asked for, and some of them besides")
		}
		if i > 0 && path.Base(at) == path.Base(roots[i-1]) {
			return nil, fmt.Errorf("%s and %s would both become %s", roots[i-1], at, path.Base(at))
		}
	}
	return roots, nil
}

// archiveName returns the archive name of a path: from the last part of root on.
func archiveName(root, p string) string {
	if parent := path.Dir(root); parent != "." {
		return strings.TrimPrefix(p, parent+"/")
	}
	return p
}

// Records in headers that tar does not define.
const (
	xattrRecord   = "SCHILY.xattr."
	sizeRecord    = "ZXFER.size"    // size of omitted contents, or of a hard link's file
	gnuRecord     = "GNU."          // prefix of records for sparse files, in which a few bytes declare any size; always refused
	damagedRecord = "ZXFER.damaged" // for the file before: why its contents are damaged
)

// maxXattrs limits the extended attributes of a file in bytes. Readers of archives accept headers
// of up to 1 MiB.
const maxXattrs = 768 << 10

// header returns the archive header of a file.
func (e *entry) header(name string) *tar.Header {
	h := &tar.Header{Format: tar.FormatPAX, Name: name, Mode: int64(e.mode()), Uid: int(e.stat.Uid), Gid: int(e.stat.Gid),
		ModTime: time.Unix(e.stat.Mtim.Sec, e.stat.Mtim.Nsec), PAXRecords: map[string]string{}}
	switch e.kind() {
	case Folder:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case Link:
		h.Typeflag = tar.TypeSymlink
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.stat.Size
	}
	return h
}

// sizeOf returns the size of the file that a header describes.
func sizeOf(h *tar.Header) (uint64, error) {
	text, ok := h.PAXRecords[sizeRecord]
	if !ok {
		return uint64(max(h.Size, 0)), nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is no size", text)
	}
	return n, nil
}
