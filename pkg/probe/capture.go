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
	// captureWait limits the run time of each program that Capture runs.
	captureWait = 5 * time.Second
	// maxFile limits the stored size of a file, in bytes.
	maxFile = 64 << 10
)

// Capture reads the sources of all facts into one text archive for txtar.Parse and
// sysinfo.ReadSystem. It omits unreadable files. It also omits private data: mount
// options, servers of network mounts, local mounts other than ZFS, symbol addresses
// and device names of pools.
//
// If brief is set, it takes a few milliseconds: it runs no programs, and reads the
// kernel's symbols, about 100,000, only if sysinfo.NeedSymbols.
func Capture(ctx context.Context, brief bool) (string, error) {
	files := map[string]string{sysinfo.Platform: runtime.GOOS + "/" + runtime.GOARCH + "\n", sysinfo.DevZFS: devZFS()}
	root := os.DirFS("/")
	files[sysinfo.PyZFS] = sysinfo.FindPyZFS(root) + "\n"
	for _, pattern := range sysinfo.Sources() {
		if pattern == sysinfo.Symbols && brief && !sysinfo.NeedSymbols(root) {
			continue
		}
		names, err := fs.Glob(root, pattern)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			if s := read(root, name); s != "" {
				files[name] = s
			}
		}
	}
	if brief {
		return string(pack(files)), nil
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
			return "", context.Cause(ctx)
		}
		if name == sysinfo.PoolStatus {
			out = poolLines(out)
		}
		if err == nil || name == "nc-help" { // the exit status of nc -h differs by dialect
			files[sysinfo.Command(name)] = out
		}
	}
	return string(pack(files)), nil
}

// pack returns an archive, sorted by file name.
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

// quoteMarkers indents lines that look like the start of an archived file.
func quoteMarkers(s string) string {
	if strings.HasPrefix(s, "-- ") {
		s = " " + s
	}
	return strings.ReplaceAll(s, "\n-- ", "\n -- ")
}

// read returns the parts of a file that the archive stores.
func read(root fs.FS, name string) string {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	switch name {
	case sysinfo.Symbols:
		return filterLines(string(raw), func(f []string) string {
			if len(f) >= 3 && sysinfo.IsVectorSymbol(f[2]) {
				return "0 " + f[1] + " " + f[2]
			}
			return ""
		})
	case "proc/self/mounts":
		return filterLines(string(raw), func(f []string) string {
			if len(f) < 3 || !slices.Contains([]string{"zfs", "nfs", "nfs4", "cifs", "smb3"}, f[2]) {
				return ""
			}
			if f[2] != "zfs" {
				f[0] = f[2] // it starts with the server's address
			}
			return f[0] + " " + f[1] + " " + f[2]
		})
	case "proc/cpuinfo":
		return cpuinfo(string(raw))
	}
	return string(raw[:min(len(raw), maxFile)])
}

// poolLines returns the lines of zpool status that sysinfo parses.
func poolLines(s string) string {
	return filterLines(s, func(f []string) string {
		if len(f) == 0 || !slices.Contains(sysinfo.PoolLines(), f[0]) {
			return ""
		}
		return strings.Join(f, " ")
	})
}

func filterLines(s string, line func(fields []string) string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if k := line(strings.Fields(l)); k != "" {
			b.WriteString(k + "\n")
		}
	}
	return b.String()
}

// cpuinfo returns the model and flags of the first processor, and the numbers of
// the others.
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
	return filterLines(first, names("processor", "vendor_id", "CPU implementer", "model name", "flags", "Features")) + "\n" + filterLines(rest, names("processor"))
}

// devZFS returns "ok" if the user may open /dev/zfs, otherwise the error.
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

// find looks up a program in the same places as package zfsexec. It returns "" if
// it is not installed.
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

// output runs a program and returns the start of its output.
func output(ctx context.Context, argv []string) (string, error) {
	path := find(argv[0])
	if path == "" {
		return "", exec.ErrNotFound
	}
	ctx, cancel := context.WithTimeout(ctx, captureWait)
	defer cancel()
	var b bytes.Buffer
	cmd := command(ctx, path, argv[1:]...)
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return string(b.Bytes()[:min(b.Len(), maxFile)]), err
}

// command returns a command in its own process group. The group is killed when ctx
// ends.
func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}
