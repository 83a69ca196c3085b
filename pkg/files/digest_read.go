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

// Read computes the digest of the files below a root. Files that it cannot read are part of the
// digest, not an error. progress may be nil.
func Read(ctx context.Context, root *os.File, q Query, progress func(transfer.Progress)) (Digest, error) {
	if err := q.Check(); err != nil {
		return Digest{}, err
	}
	at, err := clean(q.Path)
	if err != nil {
		return Digest{}, err
	}
	r := &readWorker{query: q, parts: make([]zfs.Sum, Parts), progress: progress, start: time.Now()}
	readers, ctx := errgroup.WithContext(ctx)
	// Disks serve several readers faster than one.
	readers.SetLimit(min(8, 2*runtime.NumCPU()))
	w := &walker{problem: r.problem, visit: func(e *entry) error { return r.visit(ctx, readers, e) }}
	err = w.walk(ctx, root, at)
	err = errors.Join(err, readers.Wait())
	r.report(0)
	if err != nil {
		return Digest{}, err
	}
	return r.digest(), nil
}

// reportInterval is the minimum time between progress reports.
const reportInterval = 500 * time.Millisecond

// readWorker is the state of one Read.
type readWorker struct {
	query    Query
	progress func(transfer.Progress)
	start    time.Time

	mu         sync.Mutex
	d          Digest
	read       uint64 // bytes, with zeros
	parts      []zfs.Sum
	blockSizes zfs.Sum
	lastReport time.Time // of progress
}

// partOf returns the part of a path, starting at 1, and whether its contents are read.
func (r *readWorker) partOf(p string) (part int, read bool) {
	h := xxh3.HashString128Seed(p, r.query.Seed)
	return 1 + int(xxh3.HashString(p)%Parts), r.query.Sample == 1 || float64(h.Lo) < r.query.Sample*math.MaxUint64
}

func (r *readWorker) visit(ctx context.Context, readers *errgroup.Group, e *entry) error {
	part, read := r.partOf(e.path)
	if r.query.Within != 0 && r.query.Within != part {
		return nil
	}
	f := File{Path: printablePath(e.path), Type: e.kind(), Mode: e.mode()}
	var link string
	var xattrs []xattr
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
		if f.Type == Folder || f.Type != Regular && r.query.Replica {
			if xattrs, err = e.xattrs(); err != nil {
				r.problem(e.path, fmt.Errorf("extended attributes: %w", err))
			}
		}
		r.add(part, e, f, r.query.hashAttributes(e, link, xattrs), 0)
		return nil
	}
	opened, err := e.open()
	if err != nil {
		r.problem(e.path, err)
		r.add(part, e, f, r.query.hashAttributes(e, link, nil), 0)
		return nil
	}
	readers.Go(func() error {
		defer opened.Close()
		xattrs, err := readXattrs(opened)
		if err != nil {
			r.problem(e.path, fmt.Errorf("extended attributes: %w", err))
		}
		sum, err := r.hashContents(ctx, opened, e.stat.Size)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			r.problem(e.path, err)
		} else {
			f.Sum = sum.String()
		}
		r.add(part, e, f, r.query.hashAttributes(e, link, xattrs), 1)
		return nil
	})
	return nil
}

// hashSeed returns the seed of all hashes of contents and attributes.
func (q Query) hashSeed() uint64 {
	if q.Seeded {
		return q.Seed
	}
	return 0
}

// hashContents returns the digest of a file's contents: of each chunk that is not zero, with its
// offset. Thus a hole counts like the zeros that it stands for.
func (r *readWorker) hashContents(ctx context.Context, f *os.File, size int64) (zfs.Sum, error) {
	seed := r.query.hashSeed()
	h := xxh3.NewSeed(seed)
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; {
		x, ok := extent{off, size}, true
		if r.query.settled() {
			x, ok = nextExtent(f, off, size)
		}
		if !ok {
			break
		}
		for at := x.from; at < x.to; {
			if ctx.Err() != nil {
				return zfs.Sum{}, context.Cause(ctx)
			}
			b := buf[:min(x.to-at, int64(len(buf)))]
			n, err := f.ReadAt(b, at)
			if n < len(b) {
				if errors.Is(err, io.EOF) {
					err = fmt.Errorf("read only %d of %d bytes", at+int64(n), size)
				}
				return zfs.Sum{}, withoutPath(err)
			}
			data := uint64(0)
			for c := range slices.Chunk(b, chunk) {
				if !allZero(c) {
					sum := xxh3.Hash128Seed(c, seed).Bytes()
					_, _ = h.Write(binary.LittleEndian.AppendUint64(sum[:], uint64(at))) // never fails
					data += uint64(len(c))
				}
				at += int64(len(c))
			}
			r.mu.Lock()
			r.d.Bytes += data
			r.read += uint64(n)
			r.report(reportInterval)
			r.mu.Unlock()
		}
		off = x.to
	}
	return zfs.Sum(h.Sum128()), nil
}

func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

// hashAttributes returns the digest of a file's attributes. Unless the other file is in a replica, it
// omits values that the filesystem manages (inode, link count, access and change times), and ACLs.
func (q Query) hashAttributes(e *entry, link string, xattrs []xattr) zfs.Sum {
	var b []byte
	u64 := func(n ...uint64) {
		for _, n := range n {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	u64(uint64(e.stat.Mode), uint64(e.stat.Uid), uint64(e.stat.Gid), uint64(e.stat.Mtim.Sec), uint64(e.stat.Mtim.Nsec), e.stat.Rdev, uint64(len(link)))
	if q.Replica {
		u64(uint64(e.stat.Ctim.Sec), uint64(e.stat.Ctim.Nsec))
		if e.path != "." { // OpenZFS changes both for the root of a snapshot, or one with a visible .zfs
			u64(e.stat.Ino, uint64(e.stat.Nlink))
		}
	}
	b = append(b, link...)
	for _, x := range xattrs {
		if q.Replica || !x.acl() {
			u64(uint64(len(x.name)), uint64(len(x.value)))
			b = append(append(b, x.name...), x.value...)
		}
	}
	return zfs.Sum(xxh3.Hash128Seed(b, q.hashSeed()))
}

// add adds a file to the digest. read is 1 if its contents were read, otherwise 0.
func (r *readWorker) add(part int, e *entry, f File, meta zfs.Sum, read uint64) {
	f.Meta = meta.String()
	sum := zfs.Sum(xxh3.Hash128Seed(fmt.Appendf(nil, "%s\x00%d\x00%s\x00%s", f.Path, f.Size, f.Meta, f.Sum), r.query.hashSeed()))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.d.Files++
	r.d.Size += f.Size
	r.d.Read += read
	r.parts[part-1].Add(sum)
	if r.query.Replica && f.Type == Regular && f.Size > 0 {
		r.blockSizes.Add(zfs.Sum(xxh3.Hash128Seed(fmt.Appendf(nil, "%s\x00%d", f.Path, e.stat.Blksize), r.query.hashSeed())))
	}
	if r.query.Within != 0 && len(r.d.Listed) < MaxListed {
		r.d.Listed = append(r.d.Listed, f)
	}
	r.report(reportInterval)
}

func (r *readWorker) problem(p string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.d.problem(p, err)
}

func (r *readWorker) digest() Digest {
	for _, s := range r.parts {
		r.d.Parts = append(r.d.Parts, s.String())
	}
	if r.query.Replica {
		r.d.BlockSizes = r.blockSizes.String()
	}
	slices.SortFunc(r.d.Listed, func(a, b File) int { return comparePaths(a.Path, b.Path) })
	return r.d
}

// report reports progress unless the last report is more recent than interval. The caller holds
// r.mu.
func (r *readWorker) report(interval time.Duration) {
	if now := time.Now(); r.progress != nil && now.Sub(r.lastReport) >= interval {
		r.lastReport = now
		r.progress(transfer.Progress{Bytes: int64(r.read), Files: int64(r.d.Files), Elapsed: now.Sub(r.start)})
	}
}

// withoutPath removes the path from a system error, because the message already has it.
func withoutPath(err error) error {
	if e := new(os.PathError); errors.As(err, &e) {
		err = e.Err
	}
	// Not every libc has a text for the error of a ZFS checksum mismatch.
	if errors.Is(err, unix.EBADE) || errors.Is(err, unix.EIO) {
		return fmt.Errorf("damaged: %w", err)
	}
	return err
}

// printablePath returns a path for messages and JSON. It quotes a path with unprintable characters,
// the same way each time.
func printablePath(p string) string {
	if len(p) <= 4<<10 && utf8.ValidString(p) && strings.IndexFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return p
	}
	return strconv.QuoteToASCII(p[:min(len(p), 4<<10)])
}
