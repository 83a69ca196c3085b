package device

import (
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/testenv"
)

// A capture holds everything that Inspect reads from a host: files of /proc, /sys
// and /run, directory listings, the output of wipefs and device numbers. Tests
// replay it without the devices. The top-level testdata/README.md describes how to
// record captures.
type capture struct {
	mu    sync.Mutex
	files map[string][]byte
}

// Names of captured data other than files.
const (
	capturedDir    = ".entries"
	capturedWipefs = "wipefs"
	capturedNumber = "number"
)

// recorder is an fs.FS that records reads.
type recorder struct {
	fs.FS
	to *capture
}

func (r recorder) ReadFile(name string) ([]byte, error) {
	raw, err := fs.ReadFile(r.FS, name)
	if err == nil {
		r.to.note(name, raw)
	}
	return raw, err
}

func (r recorder) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.FS, name)
	for _, e := range entries {
		r.to.note(path.Join(name, e.Name(), capturedDir), nil)
	}
	return entries, err
}

func (r recorder) Stat(name string) (fs.FileInfo, error) {
	st, err := fs.Stat(r.FS, name)
	if err == nil {
		r.to.note(path.Join(name, capturedDir), nil)
	}
	return st, err
}

func (c *capture) note(name string, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[name] = raw
}

// record returns v with recording of all queries.
func (c *capture) record(v view) view {
	return view{
		root: recorder{v.root, c},
		wipefs: func(ctx context.Context, name string) ([]byte, error) {
			raw, err := v.wipefs(ctx, name)
			if err == nil {
				c.note(capturedWipefs+name, raw)
			}
			return raw, err
		},
		number: func(name string) string {
			n := v.number(name)
			c.note(capturedNumber+name, []byte(n))
			return n
		},
	}
}

// write saves a capture. Binary data is stored in base64.
func (c *capture) write(t *testing.T, name, device string) {
	t.Helper()
	a := &txtar.Archive{Comment: []byte(device + "\n")}
	var names []string
	for n := range c.files {
		// Files, and directories with captured entries, need no marker.
		dir, isMark := strings.CutSuffix(n, "/"+capturedDir)
		_, isFile := c.files[dir]
		full := slices.ContainsFunc(slices.Collect(keys(c.files)), func(o string) bool { return o != n && strings.HasPrefix(o, dir+"/") })
		if !isMark || !isFile && !full {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		raw := c.files[n]
		switch n {
		case "etc/machine-id", "proc/sys/kernel/random/boot_id":
			continue // private
		case "proc/self/mountinfo":
			// This removes mounts from the guest's host.
			raw = regexp.MustCompile(`(?m)^.* - hostfs .*\n`).ReplaceAll(raw, nil)
		}
		if strings.ContainsRune(string(raw), 0) {
			n, raw = n+".base64", []byte(base64.StdEncoding.EncodeToString(raw)+"\n")
		}
		a.Files = append(a.Files, txtar.File{Name: n, Data: raw})
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, txtar.Format(a), 0o644))
}

func keys(m map[string][]byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// replay returns the host of a capture and the inspected device.
func replay(t *testing.T, name string) (v view, device string) {
	t.Helper()
	a, err := txtar.ParseFile(name)
	require.NoError(t, err)
	root := fstest.MapFS{}
	for _, f := range a.Files {
		n, data := f.Name, f.Data
		if text, ok := strings.CutSuffix(n, ".base64"); ok {
			n = text
			data, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(f.Data)))
			require.NoError(t, err)
		}
		root[n] = &fstest.MapFile{Data: data}
	}
	return view{
		root: root,
		wipefs: func(_ context.Context, name string) ([]byte, error) {
			f, ok := root[capturedWipefs+name]
			if !ok {
				return nil, errors.New("not captured")
			}
			return f.Data, nil
		},
		number: func(name string) string {
			f, ok := root[capturedNumber+name]
			if !ok {
				return ""
			}
			return strings.TrimSpace(string(f.Data))
		},
	}, strings.TrimSpace(string(a.Comment))
}

// captureIf saves an inspection of a device if ZXFER_CAPTURE names a directory.
func captureIf(t *testing.T, dev string) {
	t.Helper()
	dir := os.Getenv("ZXFER_CAPTURE")
	f := mustInspect(t, dev)
	if dir == "" || f.IsFile() {
		return
	}
	c := &capture{files: map[string][]byte{}}
	_, err := inspect(context.Background(), c.record(host()), dev)
	require.NoError(t, err)
	c.write(t, filepath.Join(dir, strings.ReplaceAll(path.Base(t.Name()), "_", "-")+".txtar"), f.Name+" "+f.Real)
}

// TestCapturedDevices expects the same facts and findings for captured devices as for the real
// ones.
func TestCapturedDevices(t *testing.T) {
	t.Parallel()
	for _, c := range deviceSetups() {
		file := strings.ReplaceAll(c.name, " ", "-")
		name := testenv.Data(t, "devices", file+".txtar")
		if _, err := os.Stat(name); err != nil {
			continue // image files are not captured
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, device := replay(t, name)
			kernel, dev, _ := strings.Cut(device, " ")
			f := Facts{Path: dev, Real: dev, Name: kernel}
			f.describe(v)
			f.inspectUses(v, kernel)
			f.Underlying, f.Files = v.underlying(kernel)
			f.probe(context.Background(), v)
			require.Empty(t, f.Unprobed)
			f.Busy = c.held && !f.ReadOnly && c.name != "too small" // only a live kernel knows it
			require.Equal(t, c.want, ids(checkTarget(Facts{Size: 5 * mib, Boot: "another"}, f, Allow{}), finding.Fail), "%+v", f)
			golden(t, filepath.Join("testdata", "captured", file+".json"), f)
		})
	}
	all, err := filepath.Glob(testenv.Data(t, "devices", "*.txtar"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 20)
}
