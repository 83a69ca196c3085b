package probe

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/testenv"
)

const short = 100 * time.Millisecond

func TestLocalMeasurements(t *testing.T) {
	t.Parallel()
	for _, id := range Local() {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			c, err := Run(t.Context(), Request{ID: id, Time: short})
			require.NoError(t, err)
			require.Equal(t, id, c.ID)
			require.NotEmpty(t, c.Title)
			if c.Skipped != "" {
				require.Contains(t, []string{NCYes, NCZero}, id, c.Skipped)
				return
			}
			require.Positive(t, c.BytesPerSecond)
			require.Positive(t, c.Seconds)
			require.Nil(t, c.Network, "not needed within one host")
		})
	}
	_, err := Run(t.Context(), Request{ID: "nosuch", Time: short})
	require.ErrorContains(t, err, `unknown measurement "nosuch"`)
}

// TestCancel cancels each measurement, and expects that it ends long before its time and leaves no
// process, listener or file.
func TestCancel(t *testing.T) { //nolint:paralleltest // looks at this process's listeners and children
	dir := t.TempDir()
	run := map[string]func(ctx context.Context) error{}
	for _, id := range Local() {
		run[id] = func(ctx context.Context) error {
			_, err := Run(ctx, Request{ID: id, Time: time.Hour})
			return err
		}
	}
	run[PathWrite] = func(ctx context.Context) error {
		_, err := WriteTo(ctx, Request{ID: PathWrite, Time: time.Hour}, dir, 1<<40, nil)
		return err
	}
	run[PathRead] = func(ctx context.Context) error {
		_, err := ReadFrom(ctx, Request{ID: PathRead, Time: time.Hour}, "/dev/zero")
		return err
	}
	run[SourceRead] = func(ctx context.Context) error {
		_, err := Source(ctx, Request{ID: SourceRead, Time: time.Hour}, newSource(0))
		return err
	}
	listeners := listening4(t)
	for id, f := range run {
		t.Run(id, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("enough")
			time.AfterFunc(2*short, func() { cancel(why) })
			done := make(chan error, 1)
			go func() { done <- f(ctx) }()
			var err error
			select {
			case err = <-done:
			case <-time.After(testenv.Timeout()):
				require.Fail(t, "the measurement continues")
			}
			if ctx.Err() == nil { // nc is not installed
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, why)
		})
	}
	require.Equal(t, listeners, listening4(t))
	require.Empty(t, children(t))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// listening4 returns the listening IPv4 sockets of this process.
func listening4(t *testing.T) (out []string) {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	own := map[string]bool{}
	for _, fd := range open {
		to, _ := os.Readlink(fd) // "" if closed by now
		own[to] = true
	}
	raw, err := os.ReadFile("/proc/self/net/tcp")
	require.NoError(t, err)
	for l := range strings.Lines(string(raw)) {
		if f := strings.Fields(l); len(f) > 9 && f[3] == "0A" && own["socket:["+f[9]+"]"] {
			out = append(out, f[1])
		}
	}
	return out
}

// children returns the child processes of this process.
func children(t *testing.T) (out []string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, f := range tasks {
		raw, err := os.ReadFile(f)
		if err == nil { // fails for a thread that has ended
			out = append(out, strings.Fields(string(raw))...)
		}
	}
	return out
}

// source returns n bytes of noise, or endless noise if n is 0.
type source struct {
	*timedSource
	left int
}

func newSource(n int) *source {
	return &source{&timedSource{data: noise(block), time: time.Hour}, n}
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.timedSource.Read(p)
	if s.left > 0 {
		if s.left -= n; s.left <= 0 {
			return n, io.EOF
		}
	}
	return n, err
}

// slowSource returns a block every 10 ms.
type slowSource struct{ *source }

func (s slowSource) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return s.source.Read(p)
}

// TestSource runs on a simulated clock, which only slowSource advances.
func TestSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := Source(t.Context(), Request{ID: SourceRead, Time: short}, slowSource{newSource(0)})
		require.NoError(t, err)
		require.InDelta(t, short.Seconds(), c.Seconds, 0)
		require.EqualValues(t, 100*block, c.BytesPerSecond)
		require.Empty(t, c.Note)
	})
	whole := newSource(3 * block)
	c, err := Source(t.Context(), Request{ID: SourceRead, Time: time.Hour}, whole)
	require.NoError(t, err)
	require.Equal(t, "the whole stream", c.Note)
	require.True(t, whole.closed.Load())

	broken := newSource(0)
	require.NoError(t, broken.Close())
	_, err = Source(t.Context(), Request{ID: SourceRead, Time: time.Hour}, broken)
	require.ErrorContains(t, err, "measure source-read: closed")
}

// TestWriteTo expects that WriteTo writes no more than allowed, stores each round before the next,
// and leaves no file.
func TestWriteTo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rounds := 0
	c, err := WriteTo(t.Context(), Request{ID: PathWrite, Time: time.Hour}, dir, 73<<20, func(context.Context) error { rounds++; return nil })
	require.NoError(t, err)
	require.Equal(t, 3, rounds, "of 1, 8 and 64 MiB")
	require.Positive(t, c.BytesPerSecond)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	full := errors.New("no space")
	_, err = WriteTo(t.Context(), Request{ID: PathWrite, Time: short}, dir, 1<<20, func(context.Context) error { return full })
	require.ErrorIs(t, err, full)
	_, err = WriteTo(t.Context(), Request{ID: PathWrite, Time: short}, filepath.Join(dir, "nosuch"), 1<<20, nil)
	require.ErrorIs(t, err, os.ErrNotExist)

	file := filepath.Join(dir, "image")
	require.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
	_, err = WriteTo(t.Context(), Request{ID: PathWrite, Time: short}, file, 1<<20, nil)
	require.NoError(t, err)
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept), "it is written next to it, not into it")
}

// TestWriteRounds measures a disk with a simulated clock. It stores 10 MiB/s and
// takes 50 ms per round.
func TestWriteRounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate, latency = 10 << 20, 50 * time.Millisecond
		start, written, settled := time.Now(), &counting{}, int64(0)
		disk := func(context.Context) error {
			time.Sleep(latency + time.Duration(written.n-settled)*time.Second/rate)
			settled = written.n
			return nil
		}
		got, err := writeRounds(t.Context(), time.Second, written, 1<<40, disk)
		require.NoError(t, err)
		require.Equal(t, latency+time.Second*block/rate, got.latency)
		require.InEpsilon(t, rate, float64(got.bytes)/got.seconds, 1e-6, "without the latency")
		require.Less(t, time.Since(start), 4*time.Second)
		require.LessOrEqual(t, written.n, int64(64<<20))
	})
}

// counting counts written bytes.
type counting struct{ n int64 }

func (c *counting) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

func TestReadFrom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := ReadFrom(t.Context(), Request{ID: PathRead, Time: short}, dir)
	require.NoError(t, err)
	require.Contains(t, c.Skipped, "contains no file to read")
	for name, n := range map[string]int{"small": 10, "large": 3 * block, "medium": 1000} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), noise(n), 0o600))
	}
	c, err = ReadFrom(t.Context(), Request{ID: PathRead, Time: time.Hour}, dir)
	require.NoError(t, err)
	require.Equal(t, "of "+filepath.Join(dir, "large"), c.Note)
	require.InDelta(t, 3*block, float64(c.BytesPerSecond)*c.Seconds, block/100)
	_, err = ReadFrom(t.Context(), Request{ID: PathRead, Time: short}, filepath.Join(dir, "nosuch"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestUnansweredPath measures a path that never answers, such as a file system without
// its server.
func TestUnansweredPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		defer close(stuck)
		start := time.Now()
		_, err := withTimeout(t.Context(), short, "/mnt/gone", func(context.Context) (tally, error) { <-stuck; return tally{}, nil })
		require.ErrorIs(t, err, errSilent)
		require.ErrorContains(t, err, "/mnt/gone")
		require.Equal(t, short+time.Second, time.Since(start), "a second to finish a write")
	})
}

// TestCapture expects that a capture gives the facts of this host, and contains only files in
// Sources, which hold no secrets.
func TestCapture(t *testing.T) {
	t.Parallel()
	for _, brief := range []bool{false, true} {
		text, err := Capture(t.Context(), brief)
		require.NoError(t, err)
		a := txtar.Parse([]byte(text))
		require.Contains(t, string(a.Comment), "zxfer facts v1")
		for _, f := range a.Files {
			allowed := strings.HasPrefix(f.Name, "zxfer/")
			for _, p := range sysinfo.Sources() {
				ok, err := filepath.Match(p, f.Name)
				require.NoError(t, err)
				allowed = allowed || ok
			}
			require.True(t, allowed, "%s has no source", f.Name)
			require.False(t, brief && strings.HasPrefix(f.Name, "zxfer/command/"), "%s needs a program", f.Name)
		}
		root, err := txtar.FS(a)
		require.NoError(t, err)
		s := sysinfo.ReadSystem(root)
		require.Equal(t, runtime.GOOS+"/"+runtime.GOARCH, s.Platform)
		live := sysinfo.ReadSystem(os.DirFS("/"))
		require.Equal(t, live.Kernel, s.Kernel)
		require.Equal(t, live.TCP, s.TCP)
		require.Equal(t, live.CPU.Flags, s.CPU.Flags)
		require.Equal(t, live.Fletcher, s.Fletcher)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Capture(ctx, false)
	require.ErrorIs(t, err, context.Canceled)
}

// TestReadKeepsOnlyFacts expects that parts of files that are not facts are omitted.
func TestReadKeepsOnlyFacts(t *testing.T) {
	t.Parallel()
	root := os.DirFS(t.TempDir())
	require.Empty(t, read(root, "proc/self/mounts"))
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("proc/self/mounts", "//nas/share /mnt/nas cifs rw,username=ann,password=hunter2 0 0\ntank/a /a zfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\n")
	write("proc/kallsyms", "ffffffff81000000 T kernel_fpu_begin\t[x]\nffffffff81000010 T secret_symbol\n")
	write("proc/cpuinfo", "processor\t: 0\nmodel name\t: CPU\nserial\t: 0123\nflags\t: aes\n\nprocessor\t: 1\nserial\t: 0123\n")
	root = os.DirFS(dir)
	require.Equal(t, "cifs /mnt/nas cifs\ntank/a /a zfs\n", read(root, "proc/self/mounts"))
	require.Equal(t, "0 T kernel_fpu_begin\n", read(root, sysinfo.Symbols))
	require.Equal(t, "processor : 0\nmodel name : CPU\nflags : aes\n\nprocessor : 1\n", read(root, "proc/cpuinfo"))
	require.Equal(t, "pool: tank\nerrors: 3 data errors, use '-v' for a list\n",
		poolLines("  pool: tank\n state: ONLINE\nconfig:\n\n\tNAME\ttank\n\t  ata-DISK_SERIAL0123  ONLINE  0 0 0\n\nerrors: 3 data errors, use '-v' for a list\n"))
	write("etc/os-release", strings.Repeat("x", maxFile+1))
	require.Len(t, read(root, "etc/os-release"), maxFile)
}

// TestPackQuotes expects that a line that looks like the start of an archived file does not become
// one.
func TestPackQuotes(t *testing.T) {
	t.Parallel()
	a := txtar.Parse(pack(map[string]string{"a": "-- b --\nx\n-- c --\n", "empty": " \n"}))
	require.Len(t, a.Files, 1)
	require.Equal(t, " -- b --\nx\n -- c --\n", string(a.Files[0].Data))
}

func FuzzPack(f *testing.F) {
	f.Add("a\n", "-- b --\nc\n")
	f.Add("-- a --", "\n-- ")
	f.Fuzz(func(t *testing.T, x, y string) {
		if strings.TrimSpace(x) == "" || strings.TrimSpace(y) == "" {
			return
		}
		require.Len(t, txtar.Parse(pack(map[string]string{"x": x, "y": y})).Files, 2)
	})
}
