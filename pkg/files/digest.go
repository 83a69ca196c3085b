package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
)

// Query asks for the digest of the files of a snapshot.
type Query struct {
	Snapshot string `json:"snapshot"`       // "pool/a@x"; of a dataset without snapshot, as it is now
	Path     string `json:"path,omitempty"` // below its root: a file, or a folder with all below; "" = all
	// Sample is which part of the files has its contents read, above 0 up to 1.
	// The same are chosen wherever the Seed is the same, by their paths.
	Sample float64 `json:"sample"`
	Seed   uint64  `json:"seed,omitempty"`
	// Within is the part, from 1 to Parts, whose files are listed and alone
	// are read; 0 = all parts, and nothing is listed.
	Within int `json:"within,omitempty"`
	// KeyFile is an absolute path, on the host that has the snapshot, of the key
	// that may be loaded for the time of the reading; "" = none is.
	KeyFile string `json:"key_file,omitempty"`
}

// Parts is how many parts a Digest has: a file's is chosen by the hash of its path.
const Parts = 256

// Bounds of what a Digest tells. Of eight million files, a part has some 31 thousand.
const (
	MaxListed   = 1 << 16
	MaxProblems = 100
)

// Digest is what a snapshot holds, apart from how it is stored.
type Digest struct {
	Files uint64 `json:"files"` // of all types, folders too
	Size  uint64 `json:"size"`  // of all, in bytes
	Read  uint64 `json:"read"`  // whose contents were read
	Bytes uint64 `json:"bytes"` // of these
	// Parts are the sums of the parts.
	Parts  []string `json:"parts"`
	Listed []File   `json:"listed,omitempty"`
	Failures
}

// Failures are the files that could not be read, or did not come as they were:
// Failed is how many there are, as not all may be told.
type Failures struct {
	Problems []Problem `json:"problems,omitempty"`
	Failed   uint64    `json:"failed,omitempty"`
}

func (f *Failures) problem(p string, err error) {
	f.Failed++
	if len(f.Problems) < MaxProblems {
		f.Problems = append(f.Problems, Problem{readable(p), bare(err).Error()})
	}
}

// File is one that was asked for by its part.
type File struct {
	Path string `json:"path"` // "." is the root
	Type Type   `json:"type"`
	Size uint64 `json:"size"`
	Mode uint32 `json:"mode"`          // permissions, with setuid, setgid and sticky
	Sum  string `json:"sum,omitempty"` // of the contents, where they were read
	Meta string `json:"meta"`          // of owner, mode, times, attributes and where a link leads
}

// Type is what a file is.
type Type string

// The types of files.
const (
	Regular Type = "file"
	Folder  Type = "folder"
	Link    Type = "link"
	Special Type = "special" // a device, pipe or socket
)

// Problem is a file that could not be read.
type Problem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Check refuses what is no Query.
func (q Query) Check() error {
	switch {
	case !(q.Sample > 0 && q.Sample <= 1): // which no NaN is
		return fmt.Errorf("a sample of %g, and one above 0 up to 1 is possible", q.Sample)
	case q.Within < 0 || q.Within > Parts:
		return fmt.Errorf("there is no part %d: they are numbered from 1 to %d", q.Within, Parts)
	case q.KeyFile != "" && !path.IsAbs(q.KeyFile):
		return fmt.Errorf("the key file %q is no absolute path", q.KeyFile)
	}
	_, err := clean(q.Path)
	return err
}

// clean is a path below the root as it is opened: "." for the root itself.
func clean(p string) (string, error) {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", fmt.Errorf("%q leads out of the snapshot", p)
		}
	}
	out := path.Clean(strings.TrimLeft(p, "/"))
	if !fs.ValidPath(strings.ToValidUTF8(out, "?")) || strings.ContainsRune(out, 0) || len(out) > math.MaxInt16 {
		return "", fmt.Errorf("%q is no path", p)
	}
	return out, nil
}

// Differ are the parts, from 1 on, in which two answers to one query differ.
func (d Digest) Differ(other Digest) (parts []int) {
	for i := range max(len(d.Parts), len(other.Parts)) {
		if i >= len(d.Parts) || i >= len(other.Parts) || d.Parts[i] != other.Parts[i] {
			parts = append(parts, i+1)
		}
	}
	return parts
}

// Difference is how a file differs.
type Difference struct {
	Path string `json:"path"`
	What string `json:"what"` // "is missing", "is not in the source", "has other contents", "has other attributes"
}

// Compare tells how the files of a part of a copy differ from those of its source.
func Compare(source, copied []File) (out []Difference) {
	have := make(map[string]File, len(copied))
	for _, f := range copied {
		have[f.Path] = f
	}
	for _, want := range source {
		got, ok := have[want.Path]
		delete(have, want.Path)
		switch {
		case !ok:
			out = append(out, Difference{want.Path, "is missing"})
		case got.Type != want.Type || got.Size != want.Size || got.Sum != want.Sum:
			out = append(out, Difference{want.Path, "has other contents"})
		case got != want:
			out = append(out, Difference{want.Path, "has other attributes"})
		}
	}
	for p := range have {
		out = append(out, Difference{p, "is not in the source"})
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// errLoop is what a path through a symbolic link comes to.
var errLoop = errors.New("a symbolic link is on the way, which is not followed")
