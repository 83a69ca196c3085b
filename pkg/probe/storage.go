package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
)

const (
	// pathGrace is the time that a measurement may exceed its limit. A network file
	// system without its server never answers.
	pathGrace = 30 * time.Second
	// chunk is the size of a read or write, in bytes.
	chunk = 4 * block
	// growth is the factor between the sizes of two write rounds.
	growth = 8
	// deviceReads is the number of concurrent reads, as in a copy.
	deviceReads = 4
)

// WriteTo measures how fast noise is stored on the disk of a directory. It writes
// at most limit bytes to an unnamed scratch file, which disappears with the
// process. settle waits until the data is stored. nil means fsync(2).
//
// On a slow disk, it writes little more than the disk stores in the requested time.
func WriteTo(ctx context.Context, r Request, dir string, limit int64, settle func(context.Context) error) (Ceiling, error) {
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (tally, error) {
		return withTimeout(ctx, d+pathGrace, dir, func(ctx context.Context) (tally, error) {
			info, err := os.Stat(dir)
			switch {
			case err != nil:
				return tally{}, explainMissing(dir, err)
			case info.Mode().Type() == os.ModeDevice:
				return tally{}, skip("%s is a device: zxfer writes no test data to it", dir)
			case !info.IsDir():
				dir = filepath.Dir(dir)
			}
			f, err := scratch(dir)
			if err != nil {
				return tally{}, err
			}
			defer f.Close()
			if settle == nil {
				settle = func(context.Context) error { return f.Sync() }
			}
			t, err := writeRounds(ctx, d, f, limit, settle)
			t.note = fileSystem(dir)
			return t, err
		})
	})
}

// writeRounds writes rounds of growing size and stores each. When a round takes
// long enough to predict how much is stored in d, the last round writes that much.
// The rate is the difference between the last two rounds. It excludes the fixed
// cost of a round, and includes repeated waits of the file system.
func writeRounds(ctx context.Context, d time.Duration, w io.Writer, limit int64, settle func(context.Context) error) (t tally, err error) {
	p := noise(chunk)
	var last struct {
		n    int64
		took time.Duration
	}
	round := func(size int64) (took time.Duration, err error) {
		start := time.Now()
		var n int64
		for size = min(size, limit); n < size && ctx.Err() == nil; {
			k, err := w.Write(p[:min(int64(len(p)), size-n)])
			if n += int64(k); err != nil {
				return 0, err
			}
		}
		limit -= n
		if err := settle(ctx); err != nil {
			return 0, err
		}
		took = time.Since(start)
		switch {
		case uint64(n) < t.bytes/2: // the limit truncated this round: keep the previous rate
		case n > last.n && took > last.took:
			t.bytes, t.seconds = uint64(n-last.n), (took - last.took).Seconds()
		default:
			t.bytes, t.seconds = uint64(n), took.Seconds()
		}
		last.n, last.took = n, took
		return took, nil
	}
	wait, err := round(block)
	if t.latency = wait; err != nil {
		return t, err
	}
	for size := int64(growth * block); limit > 0 && ctx.Err() == nil; size *= growth {
		took, err := round(size)
		if err != nil || took-wait > d {
			return t, err
		}
		if took-wait > d/(2*growth) {
			break
		}
	}
	if limit > 0 && ctx.Err() == nil {
		most := float64(growth * last.n) // limits the effect of a round that was fast by chance
		_, err = round(max(2*last.n, int64(min(most, float64(t.bytes)/t.seconds*d.Seconds()))))
	}
	return t, err
}

// scratch opens a file without a name. Network file systems do not support this, so
// there it creates a file and removes the name immediately.
func scratch(dir string) (*os.File, error) {
	if f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600); err == nil {
		return f, nil
	}
	f, err := os.CreateTemp(dir, ".zxfer-doctor-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // return the error of Remove
		return nil, err
	}
	return f, nil
}

// ReadFrom measures the read rate of a device, a file, or the largest file of a
// directory.
func ReadFrom(ctx context.Context, r Request, path string) (Ceiling, error) {
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (tally, error) {
		return withTimeout(ctx, d+pathGrace, path, func(ctx context.Context) (tally, error) {
			name, err := largest(path)
			if err != nil {
				return tally{}, err
			}
			info, err := os.Stat(name)
			if err != nil {
				return tally{}, err
			}
			flags, at := os.O_RDONLY, 1
			if info.Mode().Type() == os.ModeDevice {
				flags, at = flags|unix.O_DIRECT, deviceReads
			}
			f, err := os.OpenFile(name, flags, 0)
			if err != nil {
				return tally{}, err
			}
			defer f.Close()
			// Data in memory would not measure the disk.
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			t, err := readAt(ctx, d, f, at)
			if t.note = "of " + name; fileSystem(name) != "" {
				t.note += ", " + fileSystem(name)
			}
			return t, err
		})
	})
}

// readAt reads from the start with several concurrent reads, until d has passed or
// at the end.
func readAt(ctx context.Context, d time.Duration, f io.ReaderAt, parallel int) (t tally, err error) {
	var next, read atomic.Int64
	var failed error
	var once sync.Once
	var wg sync.WaitGroup
	start := time.Now()
	for range parallel {
		wg.Go(func() {
			p := device.AlignedBuffer(chunk / parallel)
			for first := true; first || time.Since(start) < d && ctx.Err() == nil; first = false {
				n, err := f.ReadAt(p, next.Add(int64(len(p)))-int64(len(p)))
				read.Add(int64(n))
				if err != nil && err != io.EOF {
					once.Do(func() { failed = err })
				}
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return tally{bytes: uint64(read.Load()), seconds: time.Since(start).Seconds()}, failed
}

// explainMissing turns a "does not exist" error into a refusal with a hint.
func explainMissing(path string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fault.Refusef("check the path, and that the file system is mounted", "%s: %w", path, os.ErrNotExist)
	}
	return err
}

func largest(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", explainMissing(path, err)
	}
	if !info.IsDir() {
		return path, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	var name string
	var size int64
	for _, e := range entries {
		if i, err := e.Info(); err == nil && i.Mode().IsRegular() && i.Size() > size {
			name, size = filepath.Join(path, e.Name()), i.Size()
		}
	}
	if name == "" {
		return "", skip("%s contains no file to read", path)
	}
	return name, nil
}

// fileSystem returns the name of the network file system of a path, or "" if it is
// local.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/magic.h
func fileSystem(path string) string {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil {
		return ""
	}
	switch uint32(s.Type) {
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case 0xff534d42, 0xfe534d42: // CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC
		return "smb"
	}
	return ""
}

// withTimeout runs f and returns an error if it does not finish within the limit. A
// system call that waits for a server cannot be interrupted, so f may keep running.
// It releases its files when it returns.
func withTimeout(ctx context.Context, limit time.Duration, path string, f func(context.Context) (tally, error)) (tally, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errSilent)
	defer cancel()
	type answer struct {
		t   tally
		err error
	}
	done := make(chan answer, 1)
	go func() {
		t, err := f(ctx)
		done <- answer{t, err}
	}()
	select {
	case a := <-done:
		return a.t, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-done: // it only had to finish a write
		return a.t, a.err
	case <-time.After(time.Second):
	}
	if errors.Is(context.Cause(ctx), errSilent) {
		return tally{}, fmt.Errorf("%s: %w", path, errSilent)
	}
	return tally{}, context.Cause(ctx)
}

// errSilent reports a path that does not respond.
var errSilent = errors.New("no answer in time")

// Source measures how fast src produces its stream, and closes it.
func Source(ctx context.Context, r Request, src transfer.Source) (Ceiling, error) {
	defer src.Close()
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (t tally, err error) {
		defer context.AfterFunc(ctx, func() { _ = src.Close() })()
		p := make([]byte, block)
		start := time.Now()
		for time.Since(start) < d {
			n, err := src.Read(p)
			t.bytes += uint64(n)
			t.seconds = time.Since(start).Seconds()
			if err == io.EOF {
				t.note = "the whole stream"
				return t, nil
			}
			if err != nil {
				return t, err
			}
		}
		return t, nil
	})
}
