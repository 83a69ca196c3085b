package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
)

// BlockQuery requests the block sizes of the regular files of a snapshot. Without Buckets and Inodes,
// the answer has only sums.
type BlockQuery struct {
	Snapshot string `json:"snapshot"` // "pool/a@x", or a dataset in its current state
	Seed     uint64 `json:"seed"`     // chooses the bucket of each inode, and its hash
	// Buckets requests the files in these buckets.
	Buckets []uint16 `json:"buckets,omitempty"`
	// Inodes requests the paths of these inodes. It excludes Buckets.
	Inodes []uint64 `json:"inodes,omitempty"`
}

// Limits of one BlockQuery and its answer.
const (
	BlockBuckets   = 4096
	MaxBlockFiles  = 1 << 18
	MaxBlockInodes = 1024
	MaxBlockAnswer = 16 << 20 // bytes
)

// BlockSizes is the answer to a BlockQuery. Names and contents of files are not part of it, except for
// the names of requested inodes.
type BlockSizes struct {
	Files uint64 `json:"files"` // regular files; a file with several names counts several times
	// Sums has 8 bytes for each bucket: the sum of the hashes of inode number and block size.
	Sums []byte `json:"sums,omitempty"`
	// List has a blockRecord for each file in Buckets. Cut reports that there are more.
	List []byte `json:"list,omitempty"`
	Cut  bool   `json:"cut,omitempty"`
	// Paths are one path of each requested inode that exists.
	Paths []InodePath `json:"paths,omitempty"`
	Failures
}

// InodePath is a name of an inode.
type InodePath struct {
	Inode uint64 `json:"inode"`
	Path  string `json:"path"`
}

// BlockFile describes how a file is stored.
type BlockFile struct {
	Inode uint64
	Size  uint64 // in bytes
	Block uint64 // block size in bytes
	// OneBlock reports that the file may have only one block. ZFS does not show the number of blocks, but
	// a file with data behind the first block has several.
	OneBlock bool
}

// blockRecord is the length of a BlockFile in BlockSizes.List.
const blockRecord = 8 + 8 + 4 + 1

// Check returns an error if the query is invalid.
func (q BlockQuery) Check() error {
	switch {
	case len(q.Buckets) > BlockBuckets || slices.ContainsFunc(q.Buckets, func(b uint16) bool { return b >= BlockBuckets }):
		return fmt.Errorf("invalid buckets: there are %d", BlockBuckets)
	case len(q.Inodes) > MaxBlockInodes:
		return fmt.Errorf("%d inodes, more than %d", len(q.Inodes), MaxBlockInodes)
	case len(q.Buckets) > 0 && len(q.Inodes) > 0:
		return errors.New("buckets and inodes exclude each other")
	}
	return nil
}

// Check returns an error if the answer does not match the query.
func (s *BlockSizes) Check(q BlockQuery) error {
	sums := BlockBuckets * 8
	if len(q.Buckets)+len(q.Inodes) > 0 {
		sums = 0
	}
	switch {
	case len(s.Sums) != sums:
		return fmt.Errorf("got sums of %d bytes, expected %d", len(s.Sums), sums)
	case len(s.List)%blockRecord != 0 || len(s.List) > MaxBlockFiles*blockRecord || len(q.Buckets) == 0 && (len(s.List) > 0 || s.Cut):
		return fmt.Errorf("got a list of %d bytes", len(s.List))
	case len(s.Problems) > MaxProblems || s.Failed < uint64(len(s.Problems)):
		return fmt.Errorf("got %d problems", len(s.Problems))
	}
	if len(s.Paths) > len(q.Inodes) {
		return fmt.Errorf("got %d paths for %d inodes", len(s.Paths), len(q.Inodes))
	}
	for _, p := range s.Paths {
		if !slices.Contains(q.Inodes, p.Inode) {
			return fmt.Errorf("got unrequested inode %d", p.Inode)
		}
	}
	return nil
}

// Listed returns the files of List by inode number.
func (s *BlockSizes) Listed() map[uint64]BlockFile {
	out := make(map[uint64]BlockFile, len(s.List)/blockRecord)
	for r := range slices.Chunk(s.List, blockRecord) {
		f := BlockFile{binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:]), uint64(binary.LittleEndian.Uint32(r[16:])), r[20] != 0}
		out[f.Inode] = f
	}
	return out
}

// DifferentBuckets returns the buckets in which the answers to one query differ.
func (s *BlockSizes) DifferentBuckets(other *BlockSizes) (out []uint16) {
	for i := range min(len(s.Sums), len(other.Sums)) / 8 {
		if [8]byte(s.Sums[8*i:]) != [8]byte(other.Sums[8*i:]) {
			out = append(out, uint16(i))
		}
	}
	return out
}

// blockReader is the state of one ReadBlockSizes.
type blockReader struct {
	query   BlockQuery
	buckets []bool // requested
	inodes  map[uint64]bool
	sums    []uint64
	listed  map[uint64]bool // inodes in out.List
	out     BlockSizes
}

// ReadBlockSizes reads the block sizes of all regular files below a root. ZFS returns the real block size
// of a file as st_blksize. It reads no contents. Directories that it cannot read are part of the answer,
// not an error. progress may be nil.
func ReadBlockSizes(ctx context.Context, root *os.File, q BlockQuery, progress func(transfer.Progress)) (BlockSizes, error) {
	if err := q.Check(); err != nil {
		return BlockSizes{}, err
	}
	r := &blockReader{query: q, buckets: make([]bool, BlockBuckets), sums: make([]uint64, BlockBuckets), inodes: map[uint64]bool{}, listed: map[uint64]bool{}}
	for _, b := range q.Buckets {
		r.buckets[b] = true
	}
	for _, inode := range q.Inodes {
		r.inodes[inode] = true
	}
	start, last := time.Now(), time.Time{}
	w := &walker{problem: r.out.problem, visit: func(e *entry) error {
		if e.kind() == Regular {
			r.out.Files++
			r.add(e)
		}
		if now := time.Now(); progress != nil && now.Sub(last) >= reportInterval {
			last = now
			progress(transfer.Progress{Files: int64(r.out.Files), Elapsed: now.Sub(start)})
		}
		return nil
	}}
	if err := w.walk(ctx, root, "."); err != nil {
		return BlockSizes{}, err
	}
	if len(q.Buckets)+len(q.Inodes) == 0 {
		for _, sum := range r.sums {
			r.out.Sums = binary.LittleEndian.AppendUint64(r.out.Sums, sum)
		}
	}
	return r.out, nil
}

// add adds a file to the answer.
func (r *blockReader) add(e *entry) {
	f := BlockFile{Inode: e.stat.Ino, Size: uint64(max(e.stat.Size, 0)), Block: uint64(max(e.stat.Blksize, 0))}
	bucket := xxh3.HashSeed(binary.LittleEndian.AppendUint64(nil, f.Inode), r.query.Seed) % BlockBuckets
	switch {
	case len(r.query.Inodes) > 0:
		if r.inodes[f.Inode] {
			r.inodes[f.Inode] = false // its first name suffices
			r.out.Paths = append(r.out.Paths, InodePath{f.Inode, printablePath(e.path)})
		}
	case len(r.query.Buckets) == 0:
		both := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, f.Inode), f.Block)
		r.sums[bucket] += xxh3.HashSeed(both, r.query.Seed)
	case r.buckets[bucket] && !r.listed[f.Inode]: // the other names of a file add nothing
		if len(r.listed) == MaxBlockFiles {
			r.out.Cut = true
			return
		}
		r.listed[f.Inode] = true
		one := byte(0)
		if e.mayHaveOneBlock(f) {
			one = 1
		}
		b := binary.LittleEndian.AppendUint64(r.out.List, f.Inode)
		b = binary.LittleEndian.AppendUint64(b, f.Size)
		r.out.List = append(binary.LittleEndian.AppendUint32(b, uint32(f.Block)), one)
	}
}

// mayHaveOneBlock reports whether a file has no data behind its first block.
func (e *entry) mayHaveOneBlock(f BlockFile) bool {
	if f.Size <= f.Block {
		return true
	}
	opened, err := e.open()
	if err != nil {
		return true
	}
	defer opened.Close()
	_, err = unix.Seek(int(opened.Fd()), int64(f.Block), unix.SEEK_DATA)
	return err != nil
}
