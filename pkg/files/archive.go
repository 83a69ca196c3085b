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

// Archive asks for files of a snapshot as a stream: a tar archive (PAX) in the order
// of a walk, so that it can begin behind any file.
type Archive struct {
	Snapshot string   `json:"snapshot"` // "pool/a@x"
	Paths    []string `json:"paths"`    // below its root: files, or folders with all below; "" = all
	KeyFile  string   `json:"key_file,omitempty"`
	// After is the name, in the archive, of the last file that is not wanted;
	// the folders that it is in still come.
	After string `json:"after,omitempty"`
	// Names leaves the contents out.
	Names bool `json:"names,omitempty"`
}

// Into says where the files of a stream go.
type Into struct {
	Directory string `json:"directory"` // absolute; it is made where it is missing
	// Overwrite replaces files that are there and differ. Without it, that there is
	// one ends the stream.
	Overwrite bool `json:"overwrite,omitempty"`
	// Look changes nothing: the Account tells what would be.
	Look bool `json:"look,omitempty"`
}

// Account is what came of a stream of files. Lists are cut at MaxProblems.
type Account struct {
	New      uint64   `json:"new"`             // that were not there
	Same     uint64   `json:"same"`            // that are there with the same size and time, and were passed over
	Replaced uint64   `json:"replaced"`        // that are there and differ
	Bytes    uint64   `json:"bytes"`           // of the contents of what was not passed over
	Names    []string `json:"names,omitempty"` // the first of what was not passed over
	Differ   []string `json:"differ,omitempty"`
	// Blocked are those whose place something of another kind has: a folder that of
	// a file, or a file that of a folder.
	Blocked []string `json:"blocked,omitempty"`
	// Unfinished tells of folders that an earlier try has left without their attributes.
	Unfinished bool `json:"unfinished,omitempty"`
	// Special are devices, pipes and sockets, which are left out.
	Special uint64 `json:"special,omitempty"`
	// Privileged are those with setuid, setgid or capabilities, which were kept.
	Privileged uint64 `json:"privileged,omitempty"`
	// Disowned tells that owners were not kept: only root may give files away.
	Disowned bool `json:"disowned,omitempty"`
	// After is the last of the files that are passed over before any that is not,
	// and Rest the bytes of the contents behind it.
	After string `json:"after,omitempty"`
	Rest  uint64 `json:"rest,omitempty"`
	Failures
}

// With is the account of both ends: what the source tells is added.
func (a Account) With(source Account) Account {
	a.Special += source.Special
	a.Problems = slices.Concat(source.Problems, a.Problems)
	a.Failed += source.Failed
	return a
}

// few adds a name to a list, while it is short.
func few(list *[]string, name string) {
	if len(*list) < MaxProblems {
		*list = append(*list, readable(name))
	}
}

// Check refuses what is no Archive.
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

// roots are the paths in the order in which they come, each with its name in the
// archive: its last part.
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

// named is a walk's path as the archive names it: from the last part of root on.
func named(root, p string) string {
	if above := path.Dir(root); above != "." {
		return strings.TrimPrefix(p, above+"/")
	}
	return p
}

// Records of an archive's headers that tar does not have.
const (
	xattrRecord   = "SCHILY.xattr."
	sizeRecord    = "ZXFER.size"    // of contents that are left out, or that a hard link's file has
	gnuRecord     = "GNU."          // begins those of sparse files, of which a few bytes make any size; none is ours
	damagedRecord = "ZXFER.damaged" // of the file before: why its contents are not what they were
)

// maxXattrs bounds the extended attributes of a file: a reader of archives takes
// headers of up to a MiB.
const maxXattrs = 768 << 10

// header describes a file.
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

// sizeOf is how long the contents are that a header is of.
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
