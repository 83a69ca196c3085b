package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// Read makes the digest of the files below a root. A file that cannot be read
// is a problem that it tells, and does not end it. progress may be nil.
func Read(ctx context.Context, root *os.File, q Query, progress func(transfer.Progress)) (Digest, error) {
	if err := q.Check(); err != nil {
		return Digest{}, err
	}
	at, err := clean(q.Path)
	if err != nil {
		return Digest{}, err
	}
	r := &reading{query: q, parts: make([]zfs.Sum, Parts), progress: progress, began: time.Now()}
	readers, ctx := errgroup.WithContext(ctx)
	// Disks serve several readers better than one.
	readers.SetLimit(min(8, 2*runtime.NumCPU()))
	w := &walker{problem: r.problem, visit: func(e *entry) error { return r.visit(ctx, readers, e) }}
	err = w.walk(ctx, root, at)
	err = errors.Join(err, readers.Wait())
	r.tell(0)
	if err != nil {
		return Digest{}, err
	}
	return r.digest(), nil
}

// tellEvery is how often progress is told.
const tellEvery = 500 * time.Millisecond

// reading is the state of one Read.
type reading struct {
	query    Query
	progress func(transfer.Progress)
	began    time.Time

	mu    sync.Mutex
	d     Digest
	parts []zfs.Sum
	told  time.Time // progress
}

// place is the part of a path, from 1 on, and whether its contents are read.
func (r *reading) place(p string) (part int, read bool) {
	h := xxh3.HashString128Seed(p, r.query.Seed)
	return 1 + int(xxh3.HashString(p)%Parts), r.query.Sample == 1 || float64(h.Lo) < r.query.Sample*math.MaxUint64
}

func (r *reading) visit(ctx context.Context, readers *errgroup.Group, e *entry) error {
	part, read := r.place(e.path)
	if r.query.Within != 0 && r.query.Within != part {
		return nil
	}
	f := File{Path: readable(e.path), Type: e.kind(), Mode: e.mode()}
	var link string
	var err error
	switch f.Type {
	case Regular:
		f.Size = uint64(max(e.stat.Size, 0))
	case Link:
		if link, err = e.target(); err != nil {
			r.problem(e.path, err)
		}
	}
	if f.Type != Regular || !read {
		r.add(part, f, e.attributes(link, nil), 0)
		return nil
	}
	opened, err := e.open()
	if err != nil {
		r.problem(e.path, err)
		r.add(part, f, e.attributes(link, nil), 0)
		return nil
	}
	readers.Go(func() error {
		defer opened.Close()
		xattrs, err := xattrsOf(opened)
		if err != nil {
			r.problem(e.path, fmt.Errorf("extended attributes: %w", err))
		}
		sum, n, err := r.contents(ctx, opened)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && n != f.Size {
			err = fmt.Errorf("%d bytes of %d could be read", n, f.Size)
		}
		if err != nil {
			r.problem(e.path, err)
		} else {
			f.Sum = sum.String()
		}
		r.add(part, f, e.attributes(link, xattrs), 1)
		return nil
	})
	return nil
}

// contents hashes a file.
func (r *reading) contents(ctx context.Context, f *os.File) (zfs.Sum, uint64, error) {
	h := xxh3.New128()
	buf := make([]byte, 1<<20)
	total := uint64(0)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		_, _ = h.Write(buf[:n]) // which never fails
		total += uint64(n)
		r.mu.Lock()
		r.d.Bytes += uint64(n)
		r.tell(tellEvery)
		r.mu.Unlock()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return zfs.Sum{}, total, bare(err)
		}
	}
	return zfs.Sum(h.Sum128()), total, nil
}

// attributes is the hash of what a file has besides contents. What a file system
// keeps for itself (inode, links, times of access and change) is not of it, nor are
// ACLs, which are seen only where the dataset's acltype says so.
func (e *entry) attributes(link string, xattrs []xattr) zfs.Sum {
	var b []byte
	u64 := func(n ...uint64) {
		for _, n := range n {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	u64(uint64(e.stat.Mode), uint64(e.stat.Uid), uint64(e.stat.Gid), uint64(e.stat.Mtim.Sec), uint64(e.stat.Mtim.Nsec), e.stat.Rdev, uint64(len(link)))
	b = append(b, link...)
	for _, x := range xattrs {
		if !x.acl() {
			u64(uint64(len(x.name)), uint64(len(x.value)))
			b = append(append(b, x.name...), x.value...)
		}
	}
	return zfs.Sum(xxh3.Hash128(b))
}

// add counts a file, of which contents were read, or were not.
func (r *reading) add(part int, f File, meta zfs.Sum, read uint64) {
	f.Meta = meta.String()
	sum := zfs.Sum(xxh3.Hash128(fmt.Appendf(nil, "%s\x00%d\x00%s\x00%s", f.Path, f.Size, f.Meta, f.Sum)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.d.Files++
	r.d.Size += f.Size
	r.d.Read += read
	r.parts[part-1].Add(sum)
	if r.query.Within != 0 && len(r.d.Listed) < MaxListed {
		r.d.Listed = append(r.d.Listed, f)
	}
	r.tell(tellEvery)
}

func (r *reading) problem(p string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.d.problem(p, err)
}

func (r *reading) digest() Digest {
	for _, s := range r.parts {
		r.d.Parts = append(r.d.Parts, s.String())
	}
	slices.SortFunc(r.d.Listed, func(a, b File) int { return compare(a.Path, b.Path) })
	return r.d
}

// tell tells of progress, where it was told longer ago; r is locked.
func (r *reading) tell(ago time.Duration) {
	if now := time.Now(); r.progress != nil && now.Sub(r.told) >= ago {
		r.told = now
		r.progress(transfer.Progress{Bytes: int64(r.d.Bytes), Files: int64(r.d.Files), Elapsed: now.Sub(r.began)})
	}
}

// bare is an error of the system without a name, which is told with it.
func bare(err error) error {
	if e := new(os.PathError); errors.As(err, &e) {
		err = e.Err
	}
	// What ZFS says of a block whose checksum does not match is not in every libc's words.
	if errors.Is(err, unix.EBADE) || errors.Is(err, unix.EIO) {
		return fmt.Errorf("damaged: %w", err)
	}
	return err
}

// readable is a path as people and JSON can read it, quoted where it is not: one name for
// one file wherever it is.
func readable(p string) string {
	if len(p) <= 4<<10 && utf8.ValidString(p) && strings.IndexFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return p
	}
	return strconv.QuoteToASCII(p[:min(len(p), 4<<10)])
}
