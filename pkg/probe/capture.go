// Package probe looks at a running host and measures it: the files and
// programs that facts are read from, and ceilings, the rates that parts of it
// reach by themselves.
//
// A measurement takes about as long as it is told to, ends with its context,
// and leaves no process, listener or file behind. The package judges nothing:
// that is package preflight's.
package probe

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/tools/txtar"

	"zxfer/pkg/sysinfo"
)

const (
	// captureWait bounds each program that a capture runs.
	captureWait = 5 * time.Second
	// maxFile bounds what is kept of a file, in bytes.
	maxFile = 64 << 10
)

// Capture reads all that facts are made of into one text archive, which
// txtar.Parse and sysinfo.ReadSystem read again. What cannot be read is left
// out. Options of mounts, servers of a network's mounts, symbols' addresses, mounts
// that are neither ZFS's nor a network's, and names of pools' devices are not kept.
//
// A brief one takes a few milliseconds: it runs no program, and reads the
// kernel's symbols, of which there are some 100,000, only where they decide.
func Capture(ctx context.Context, brief bool) ([]byte, error) {
	files := map[string]string{sysinfo.Platform: runtime.GOOS + "/" + runtime.GOARCH + "\n", sysinfo.DevZFS: devZFS()}
	root := os.DirFS("/")
	files[sysinfo.PyZFS] = sysinfo.FindPyZFS(root) + "\n"
	for _, pattern := range sysinfo.Sources() {
		if pattern == sysinfo.Symbols && brief && !sysinfo.SymbolsDecide(root) {
			continue
		}
		names, err := fs.Glob(root, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if s := read(root, name); s != "" {
				files[name] = s
			}
		}
	}
	if brief {
		return pack(files), nil
	}
	var which strings.Builder
	for _, p := range sysinfo.Programs() {
		if path := find(p); path != "" {
			fmt.Fprintf(&which, "%s\t%s\n", p, path)
		}
	}
	files[sysinfo.Command("which")] = which.String()
	for name, argv := range sysinfo.Commands() {
		out, err := output(ctx, argv)
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if name == sysinfo.PoolStatus {
			out = poolLines(out)
		}
		if err == nil || name == "nc-help" { // every nc -h has its own exit status
			files[sysinfo.Command(name)] = out
		}
	}
	return pack(files), nil
}

// pack makes an archive, sorted by name.
func pack(files map[string]string) []byte {
	a := &txtar.Archive{Comment: []byte("zxfer facts v1\n")}
	for name, data := range files {
		if strings.TrimSpace(data) == "" {
			continue
		}
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(quoteMarkers(data))})
	}
	slices.SortFunc(a.Files, func(x, y txtar.File) int { return strings.Compare(x.Name, y.Name) })
	return txtar.Format(a)
}

// quoteMarkers keeps a line that looks like the start of a file from being
// one.
func quoteMarkers(s string) string {
	if strings.HasPrefix(s, "-- ") {
		s = " " + s
	}
	return strings.ReplaceAll(s, "\n-- ", "\n -- ")
}

// read returns what is kept of a file.
func read(root fs.FS, name string) string {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	switch name {
	case sysinfo.Symbols:
		return keep(string(raw), func(f []string) string {
			if len(f) >= 3 && sysinfo.Interesting(f[2]) {
				return "0 " + f[1] + " " + f[2]
			}
			return ""
		})
	case "proc/self/mounts":
		return keep(string(raw), func(f []string) string {
			if len(f) < 3 || !slices.Contains([]string{"zfs", "nfs", "nfs4", "cifs", "smb3"}, f[2]) {
				return ""
			}
			if f[2] != "zfs" {
				f[0] = f[2] // it begins with a server's address
			}
			return f[0] + " " + f[1] + " " + f[2]
		})
	case "proc/cpuinfo":
		return cpuinfo(string(raw))
	}
	return string(raw[:min(len(raw), maxFile)])
}

// poolLines keeps the lines of zpool status that are read.
func poolLines(s string) string {
	return keep(s, func(f []string) string {
		if len(f) == 0 || !slices.Contains(sysinfo.PoolLines(), f[0]) {
			return ""
		}
		return strings.Join(f, " ")
	})
}

func keep(s string, line func(fields []string) string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if k := line(strings.Fields(l)); k != "" {
			b.WriteString(k + "\n")
		}
	}
	return b.String()
}

// cpuinfo keeps the model and flags of the first processor, and the number of
// each further one.
func cpuinfo(s string) string {
	first, rest, _ := strings.Cut(s, "\n\n")
	names := func(wanted ...string) func([]string) string {
		return func(f []string) string {
			name, _, _ := strings.Cut(strings.Join(f, " "), ":")
			if slices.Contains(wanted, strings.TrimSpace(name)) {
				return strings.Join(f, " ")
			}
			return ""
		}
	}
	return keep(first, names("processor", "vendor_id", "CPU implementer", "model name", "flags", "Features")) + "\n" + keep(rest, names("processor"))
}

// devZFS tells whether the user may use ZFS at all.
func devZFS() string {
	f, err := os.OpenFile("/dev/zfs", os.O_RDWR, 0)
	if err != nil {
		if pe, ok := err.(*fs.PathError); ok {
			err = pe.Err
		}
		return err.Error() + "\n"
	}
	_ = f.Close() // nothing was written
	return "ok\n"
}

// find looks for a program as package zfsexec does.
func find(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}

// output runs a program and returns the beginning of what it printed.
func output(ctx context.Context, argv []string) (string, error) {
	path := find(argv[0])
	if path == "" {
		return "", exec.ErrNotFound
	}
	ctx, cancel := context.WithTimeout(ctx, captureWait)
	defer cancel()
	var b bytes.Buffer
	cmd := group(ctx, path, argv[1:]...)
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return string(b.Bytes()[:min(b.Len(), maxFile)]), err
}

// group is a command in a process group of its own, which dies with ctx and
// with this process.
func group(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}
