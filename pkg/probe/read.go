package probe

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
)

// Source measures how fast a source yields its stream, which it closes.
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

// WriteTo measures how fast noise is written below a directory and reaches
// the disk: at most limit bytes, in a scratch file that has no name, so that
// it goes with the process however that ends.
func WriteTo(ctx context.Context, r Request, dir string, limit int64) (Ceiling, error) {
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (tally, error) {
		f, err := scratch(dir)
		if err != nil {
			return tally{}, err
		}
		defer f.Close()
		p := noise(4 * block)
		start := time.Now()
		left := limit
		t, err := repeat(ctx, d, len(p), func() error {
			if left -= int64(len(p)); left < 0 {
				return io.EOF
			}
			_, err := f.Write(p)
			return err
		})
		if err != nil && err != io.EOF {
			return t, err
		}
		// What is still in memory when the time is up counts, and so does the
		// time that it takes to store it.
		if err := f.Sync(); err != nil {
			return t, err
		}
		t.seconds = time.Since(start).Seconds()
		return t, nil
	})
}

// scratch opens a file without a name; network file systems have none of
// those, there the name is removed at once.
func scratch(dir string) (*os.File, error) {
	if f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600); err == nil {
		return f, nil
	}
	f, err := os.CreateTemp(dir, ".zxfer-doctor-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // the error of Remove counts
		return nil, err
	}
	return f, nil
}

// ReadFrom measures how fast the largest file at a path, or the file that it
// is, can be read.
func ReadFrom(ctx context.Context, r Request, path string) (Ceiling, error) {
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (tally, error) {
		name, err := largest(path)
		if err != nil {
			return tally{}, err
		}
		f, err := os.Open(name)
		if err != nil {
			return tally{}, err
		}
		defer f.Close()
		// Only what is not in memory already says anything of the disk.
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		p := make([]byte, 4*block)
		start := time.Now()
		t := tally{note: "of " + name}
		for time.Since(start) < d && ctx.Err() == nil {
			n, err := f.Read(p)
			t.bytes += uint64(n)
			if err != nil {
				break
			}
		}
		t.seconds = time.Since(start).Seconds()
		return t, nil
	})
}

func largest(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return path, err
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
		return "", skip("%s holds no file to read", path)
	}
	return name, nil
}
