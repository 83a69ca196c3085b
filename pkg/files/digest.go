package files

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Query requests the digest of the files of a snapshot.
type Query struct {
	Snapshot string `json:"snapshot"`       // "pool/a@x", or a dataset in its current state
	Path     string `json:"path,omitempty"` // below the snapshot's root: a file, or a folder with all descendants; "" = all
	// Sample is the fraction of files whose contents are read, above 0 and up to 1. The choice
	// depends only on the paths and the Seed.
	Sample float64 `json:"sample"`
	Seed   uint64  `json:"seed,omitempty"`
	// Seeded makes the digests depend on the Seed. A host that kept only earlier digests, and not
	// the files, then cannot answer the query with a new Seed.
	Seeded bool `json:"seeded,omitempty"`
	// Replica includes everything in which a file of the same snapshot in another pool is equal:
	// access control lists, inode numbers, link counts and change times, and the block sizes in
	// Digest.BlockSizes. The root must show access control lists.
	Replica bool `json:"replica,omitempty"`
	// Within restricts the query to one part, from 1 to Parts, and lists its files. 0 = all parts,
	// without a list.
	Within int `json:"within,omitempty"`
	// KeyFile is an absolute path on the snapshot's host. The key in it is loaded for the query if
	// needed; "" = no key.
	KeyFile string `json:"key_file,omitempty"`
}

// Parts is the number of parts of a Digest. The hash of its path selects a file's part.
const Parts = 256

// Limits of a Digest. With eight million files, a part has about 31,000.
const (
	MaxListed   = 1 << 16
	MaxProblems = 100
)

// Digest describes the contents of a snapshot, independent of how they are stored.
type Digest struct {
	Files uint64 `json:"files"` // number of files of all types, including folders
	Size  uint64 `json:"size"`  // total size in bytes
	Read  uint64 `json:"read"`  // number of files whose contents were read
	Bytes uint64 `json:"bytes"` // bytes read, without holes and chunks of zeros
	// Parts are the digests of the parts.
	Parts []string `json:"parts"`
	// BlockSizes is the digest of the files' block sizes, "" unless Query.Replica is set. A correct
	// replica may have other block sizes.
	BlockSizes string `json:"block_sizes,omitempty"`
	Listed     []File `json:"listed,omitempty"`
	Failures
}

// Failures are files that could not be read or arrived damaged. Failed counts them all; Problems is
// limited.
type Failures struct {
	Problems []Problem `json:"problems,omitempty"`
	Failed   uint64    `json:"failed,omitempty"`
}

func (f *Failures) problem(p string, err error) {
	f.Failed++
	if len(f.Problems) < MaxProblems {
		f.Problems = append(f.Problems, Problem{printablePath(p), withoutPath(err).Error()})
	}
}

// File describes a file in the part Query.Within.
type File struct {
	Path string `json:"path"` // "." is the root
	Type Type   `json:"type"`
	Size uint64 `json:"size"`
	Mode uint32 `json:"mode"`          // permissions, with setuid, setgid and sticky bits
	Sum  string `json:"sum,omitempty"` // digest of the contents; "" if they were not read
	Meta string `json:"meta"`          // digest of owner, mode, times, attributes and link target
}

// Type is the type of a file.
type Type string

const (
	Regular Type = "file"
	Folder  Type = "folder"
	Link    Type = "link"
	Special Type = "special" // device, pipe or socket
)

// Problem is a file that could not be read.
type Problem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Check returns an error if the query is invalid.
func (q Query) Check() error {
	switch {
	case !(q.Sample > 0 && q.Sample <= 1): // written so that NaN fails
		return fmt.Errorf("sample %g: must be above 0, at most 1", q.Sample)
	case q.Within < 0 || q.Within > Parts:
		return fmt.Errorf("part %d: must be from 1 to %d", q.Within, Parts)
	case q.KeyFile != "" && !path.IsAbs(q.KeyFile):
		return fmt.Errorf("key file %q is not an absolute path", q.KeyFile)
	}
	_, err := clean(q.Path)
	return err
}

// settled reports whether the files cannot change, so that holes are reported correctly.
func (q Query) settled() bool {
	return strings.Contains(q.Snapshot, "@") || zfs.IsDrillClone(q.Snapshot)
}

// clean returns a path below the root in the form for opening: "." for the root.
func clean(p string) (string, error) {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", fmt.Errorf("path %q leaves the snapshot", p)
		}
	}
	out := path.Clean(strings.TrimLeft(p, "/"))
	if !fs.ValidPath(strings.ToValidUTF8(out, "?")) || strings.ContainsRune(out, 0) || len(out) > math.MaxInt16 {
		return "", fmt.Errorf("%q is not a path", p)
	}
	return out, nil
}

// DifferentParts returns the parts, starting at 1, in which two digests of one query differ.
func (d Digest) DifferentParts(other Digest) (parts []int) {
	for i := range max(len(d.Parts), len(other.Parts)) {
		if i >= len(d.Parts) || i >= len(other.Parts) || d.Parts[i] != other.Parts[i] {
			parts = append(parts, i+1)
		}
	}
	return parts
}

// Difference describes how a file differs.
type Difference struct {
	Path string `json:"path"`
	What string `json:"what"` // "is missing", "is not in the source", "has other contents", "has other attributes"
}

// Compare returns the differences between the files of a part in source and copy.
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
			out = append(out, Difference{want.Path, "has different contents"})
		case got != want:
			out = append(out, Difference{want.Path, "has different attributes"})
		}
	}
	for p := range have {
		out = append(out, Difference{p, "is not in the source"})
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return out
}
