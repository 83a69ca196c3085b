package files

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Archive requests files of a snapshot as a tar archive (PAX). The files are in walk order, so the
// archive can start after any file.
type Archive struct {
	Snapshot string   `json:"snapshot"` // "pool/a@x"
	Paths    []string `json:"paths"`    // below the snapshot's root: files, or folders with all descendants; "" = all
	KeyFile  string   `json:"key_file,omitempty"`
	// After is the archive name of the last file to skip. Its folders are still included.
	After string `json:"after,omitempty"`
	// NamesOnly omits the contents.
	NamesOnly bool `json:"names,omitempty"`
}

// UnpackOptions says where to unpack files.
type UnpackOptions struct {
	Directory string `json:"directory"` // absolute path; created if missing
	// Overwrite replaces existing files that differ. Without it, such a file is an error.
	Overwrite bool `json:"overwrite,omitempty"`
	// DryRun is a dry run: it changes nothing and returns the expected Account.
	DryRun bool `json:"look,omitempty"`
}

// Account counts the files of a transfer. Lists have at most MaxProblems names.
type Account struct {
	New      uint64   `json:"new"`             // files that did not exist
	Same     uint64   `json:"same"`            // files with the same size and time, which were skipped
	Replaced uint64   `json:"replaced"`        // files that existed and differed
	Bytes    uint64   `json:"bytes"`           // size of the files that were not skipped, without holes
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
	// OwnersNotKept reports that owners were not kept, because only root may change them.
	OwnersNotKept bool `json:"disowned,omitempty"`
	// HiddenACLs is why the source could not read access control lists, "" if it could.
	HiddenACLs string `json:"hidden_acls,omitempty"`
	// After is the last skipped file before the first one that is not skipped. Rest is the size in
	// bytes of all files after it, without holes.
	After string `json:"after,omitempty"`
	Rest  uint64 `json:"rest,omitempty"`
	Failures
}

// With returns the account of the target with that of the source added.
func (a Account) With(source Account) Account {
	a.Special += source.Special
	a.HiddenACLs = source.HiddenACLs
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
		return errors.New("no path")
	}
	if a.KeyFile != "" && !path.IsAbs(a.KeyFile) {
		return fmt.Errorf("key file %q is not an absolute path", a.KeyFile)
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
			return nil, errors.New("the request names all files and also single ones")
		}
		if i > 0 && path.Base(at) == path.Base(roots[i-1]) {
			return nil, fmt.Errorf("%q and %q would both be restored as %q", roots[i-1], at, path.Base(at))
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
	sizeRecord    = "ZXFER.size"    // size of omitted contents, of a hard link's file, or of a file with holes
	dataRecord    = "ZXFER.data"    // bytes of data of a file with holes, whose contents are a list of extents
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

// sizeOf returns the size of the file that a header describes, and how much of it is data. sparse
// reports whether the file has holes.
func sizeOf(h *tar.Header) (size, data uint64, sparse bool, err error) {
	size = uint64(max(h.Size, 0))
	if text, ok := h.PAXRecords[sizeRecord]; ok {
		if size, err = parseSize(text); err != nil {
			return 0, 0, false, err
		}
	}
	data = size
	if text, ok := h.PAXRecords[dataRecord]; ok {
		sparse = true
		if data, err = parseSize(text); err == nil && (h.Typeflag != tar.TypeReg || data > size) {
			err = fmt.Errorf("archive contains %d bytes of data in a file of %d", data, size)
		}
	}
	return size, data, sparse, err
}

func parseSize(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size", text)
	}
	return n, nil
}

// maxLinks limits the remembered hard-linked files. The names of others become separate files.
const maxLinks = 1 << 20

// Packer is a transfer.Source that produces an Archive.
type Packer struct {
	archive Archive
	read    *io.PipeReader
	cancel  context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	account Account
}

// Pack packs files below a root. It calls closeRoot when it has finished reading, also after an
// error.
// hiddenACLs is why root does not show access control lists, "" if it does.
func Pack(ctx context.Context, root *os.File, closeRoot func() error, a Archive, hiddenACLs string) (*Packer, error) {
	roots, err := a.roots()
	if err != nil {
		return nil, errors.Join(err, closeRoot())
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	p := &Packer{archive: a, read: r, cancel: cancel, done: make(chan struct{}), account: Account{HiddenACLs: hiddenACLs}}
	go func() {
		defer close(p.done)
		buffered := bufio.NewWriterSize(w, 256<<10)
		k := &packWorker{Packer: p, ctx: ctx, tar: tar.NewWriter(buffered), links: map[inode]string{}, buf: make([]byte, 256<<10)}
		err := k.packAll(root, roots)
		if err == nil {
			err = errors.Join(k.tar.Close(), buffered.Flush())
		}
		if cerr := closeRoot(); cerr != nil {
			p.problem(".", cerr)
		}
		_ = w.CloseWithError(err) // nil means the end; it always returns nil
	}()
	return p, nil
}

func (p *Packer) Read(b []byte) (int, error) { return p.read.Read(b) }

func (p *Packer) Name() string { return "the files of " + p.archive.Snapshot }

// Close stops reading.
func (p *Packer) Close() error {
	p.cancel()
	_ = p.read.Close() // always returns nil
	<-p.done
	return nil
}

// Account returns the counts of skipped files.
func (p *Packer) Account() Account {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.account
}

func (p *Packer) problem(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.account.problem(name, err)
}

type inode struct{ device, number uint64 }

// packWorker is the state of a Packer's goroutine.
type packWorker struct {
	*Packer
	ctx   context.Context
	tar   *tar.Writer
	links map[inode]string // first names of hard-linked files
	buf   []byte
}

func (k *packWorker) packAll(root *os.File, roots []string) error {
	for _, at := range roots {
		w := &walker{visit: func(e *entry) error { return k.packEntry(e, archiveName(at, e.path)) }, problem: k.problem}
		err := w.walk(k.ctx, root, at)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, errLoop) {
			return fault.Refusef("write paths relative to the root of the dataset; name the child dataset for its files",
				"%s in %s: %w", printablePath(at), k.archive.Snapshot, err)
		}
		if err != nil {
			return fmt.Errorf("%s in %s: %w", printablePath(at), k.archive.Snapshot, err)
		}
	}
	return nil
}

// skipped reports whether a file is before the requested start. The folders of Archive.After are
// not skipped.
func (k *packWorker) skipped(e *entry, name string) bool {
	after := k.archive.After
	return after != "" && comparePaths(name, after) <= 0 && !(e.kind() == Folder && strings.HasPrefix(after+"/", name+"/"))
}

func (k *packWorker) packEntry(e *entry, name string) error {
	if name == "." {
		return nil // the directory belongs to its owner
	}
	if e.kind() == Special {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.account.Special++
		return nil
	}
	h := e.header(name)
	if e.kind() == Regular && e.stat.Nlink > 1 {
		id := inode{e.stat.Dev, e.stat.Ino}
		if first, ok := k.links[id]; ok {
			if k.skipped(e, name) {
				return nil
			}
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			h.PAXRecords[sizeRecord] = strconv.FormatInt(e.stat.Size, 10)
			return k.tar.WriteHeader(h)
		}
		if len(k.links) < maxLinks {
			k.links[id] = name
		}
	}
	if k.skipped(e, name) {
		return nil
	}
	switch e.kind() {
	case Link:
		var err error
		if h.Linkname, err = e.target(); err != nil {
			k.problem(e.path, err)
			return nil
		}
		return k.tar.WriteHeader(h)
	case Regular:
		return k.packRegular(e, h)
	}
	k.addFolderXattrs(e, h)
	return k.tar.WriteHeader(h)
}

// addFolderXattrs adds a folder's extended attributes. The walk reports a folder that cannot be
// opened.
func (k *packWorker) addFolderXattrs(e *entry, h *tar.Header) {
	if f, err := e.open(); err == nil && !k.archive.NamesOnly {
		defer f.Close()
		k.addXattrs(e, f, h)
	}
}

func (k *packWorker) packRegular(e *entry, h *tar.Header) error {
	f, err := e.open()
	if k.archive.NamesOnly {
		h.PAXRecords[sizeRecord], h.Size = strconv.FormatInt(h.Size, 10), 0
		if err == nil { // otherwise the transfer reports it
			defer f.Close()
			if _, data := countExtents(f, e.stat.Size); data < e.stat.Size {
				h.PAXRecords[dataRecord] = strconv.FormatInt(data, 10)
			}
		}
		return k.tar.WriteHeader(h)
	}
	if err != nil {
		k.forgetLink(e)
		k.problem(e.path, err)
		return nil
	}
	defer f.Close()
	k.addXattrs(e, f, h)
	extents, data := countExtents(f, e.stat.Size)
	sparse := data < e.stat.Size && h.Size > data+extents*extentHeader
	if sparse {
		h.PAXRecords[sizeRecord], h.PAXRecords[dataRecord] = strconv.FormatInt(h.Size, 10), strconv.FormatInt(data, 10)
		h.Size = data + extents*extentHeader
	}
	if err := k.tar.WriteHeader(h); err != nil {
		return err
	}
	damage, err := k.writeContents(f, e.stat.Size, sparse, h.Size)
	if err != nil || damage == nil {
		return err
	}
	k.forgetLink(e)
	k.problem(e.path, damage)
	return k.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{damagedRecord: withoutPath(damage).Error()}})
}

// forgetLink makes further names of a file separate files, because the file itself was not sent.
func (k *packWorker) forgetLink(e *entry) { delete(k.links, inode{e.stat.Dev, e.stat.Ino}) }

// writeContents writes the contents of a file, or its extents if it is sparse: total bytes. damage
// says why they are not the file's contents; err ends the archive.
func (k *packWorker) writeContents(f *os.File, size int64, sparse bool, total int64) (damage, err error) {
	if !sparse {
		return k.writeRange(f, extent{0, size}, nil)
	}
	for off := int64(0); ; {
		x, ok := nextExtent(f, off, size)
		if !ok {
			break
		}
		if total -= extentHeader + x.size(); total < 0 {
			return nil, fmt.Errorf("the holes of %s changed", printablePath(f.Name()))
		}
		if _, err := k.tar.Write(x.header()); err != nil {
			return nil, err
		}
		if damage, err = k.writeRange(f, x, damage); err != nil {
			return nil, err
		}
		off = x.to
	}
	if total != 0 {
		err = fmt.Errorf("the holes of %s changed", printablePath(f.Name()))
	}
	return damage, err
}

// writeRange writes a range of a file, or zeros if the file is damaged.
func (k *packWorker) writeRange(f *os.File, x extent, damage error) (error, error) {
	for at := x.from; at < x.to; {
		if k.ctx.Err() != nil {
			return nil, context.Cause(k.ctx)
		}
		b := k.buf[:min(x.to-at, int64(len(k.buf)))]
		n := 0
		if damage == nil {
			n, damage = f.ReadAt(b, at)
			if n == len(b) {
				damage = nil
			} else if errors.Is(damage, io.EOF) {
				damage = errors.New("file is shorter than its size")
			}
		}
		clear(b[n:])
		if _, err := k.tar.Write(b); err != nil {
			return nil, err
		}
		at += int64(len(b))
	}
	return damage, nil
}

// addXattrs adds extended attributes, including ACLs.
func (k *packWorker) addXattrs(e *entry, f *os.File, h *tar.Header) {
	all, err := readXattrs(f)
	if err != nil {
		k.problem(e.path, fmt.Errorf("extended attributes: %w", err))
	}
	total := 0
	for _, x := range all {
		total += len(x.name) + len(x.value)
		if total > maxXattrs || strings.Contains(x.name, "=") {
			k.problem(e.path, fmt.Errorf("extended attribute %s does not fit into an archive", printablePath(x.name)))
			continue
		}
		h.PAXRecords[xattrRecord+x.name] = string(x.value)
	}
}

// sameTime compares times. Some filesystems store only seconds.
func sameTime(sec, nsec int64, t time.Time) bool {
	return sec == t.Unix() && (nsec == 0 || nsec == int64(t.Nanosecond()))
}
