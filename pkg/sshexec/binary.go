package sshexec

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/kballard/go-shellquote"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/fault"
)

// program is zxfer's main package.
const program = "zxfer/cmd/zxfer"

// packageDir is where distribution packages install binaries for other architectures.
const packageDir = "/usr/lib/zxfer"

// maxBinary limits the size of a binary in bytes.
const maxBinary = 256 << 20

// build is a zxfer binary that can be copied to a host.
type build struct {
	id    string
	bytes []byte // nil for the running binary, which is read on demand
}

// self returns the build for hosts of the same architecture: the running binary, or ownBuild in
// tests.
func (o *Options) self() (*build, error) {
	if o.ownBuild != nil {
		return o.ownBuild, nil
	}
	self, err := ThisBinary()
	return &build{id: self.ID}, err
}

// binaryFor returns the build for a system and machine, or nil for the running one. It looks next
// to the running binary and in packageDir.
func (o *Options) binaryFor(system, machine string) (*build, error) {
	goarch := goarchFor(machine)
	switch {
	case system != "Linux":
		return nil, fault.Refusef("zxfer runs on Linux only", "its system is %s, this zxfer is for Linux", system)
	case goarch == runtime.GOARCH:
		return nil, nil
	case goarch == "":
		return nil, fault.Refusef("build zxfer for its architecture, and install it there", "its machine is %s, this zxfer is for %s", machine, runtime.GOARCH)
	}
	own, _ := debug.ReadBuildInfo()
	dirs := o.binaryDirs
	if dirs == nil {
		dirs = []string{packageDir}
		if self, err := os.Executable(); err == nil {
			dirs = []string{filepath.Dir(self), packageDir}
		}
	}
	for _, dir := range dirs {
		for _, name := range []string{"zxfer-linux-" + goarch, "zxfer-linux-" + goarch + ".zst"} {
			file := filepath.Join(dir, name)
			text, err := readBinary(file)
			if os.IsNotExist(err) {
				continue
			}
			if err = cmp.Or(err, checkBinary(text, goarch, own)); err != nil {
				return nil, fault.Refusef("replace the file with the one of the same release", "its machine is %s, and %s %w", machine, file, err)
			}
			sum := sha256.Sum256(text)
			return &build{hex.EncodeToString(sum[:]), text}, nil
		}
	}
	file := filepath.Join(dirs[0], "zxfer-linux-"+goarch)
	return nil, fault.Refusef(fmt.Sprintf("copy it there, or to %s, from the release's tarball\nor build it from the same source: %s", dirs[len(dirs)-1],
		"CGO_ENABLED=0 GOARCH="+goarch+" go build -o="+shellquote.Join(file)+" ./cmd/zxfer"),
		"its machine is %s, this zxfer is for %s, and there is no %s", machine, runtime.GOARCH, file)
}

// machines returns the uname names of machines that run binaries for goarch.
func machines(goarch string) []string {
	switch goarch {
	case "amd64":
		return []string{"x86_64", "amd64"}
	case "arm64":
		return []string{"aarch64", "arm64"}
	case "386":
		return []string{"i386", "i486", "i586", "i686", "x86_64"}
	case "arm":
		return []string{"armv6l", "armv7l", "armv8l"}
	}
	return []string{goarch}
}

// goarchFor returns a GOARCH that runs on a machine, named as by uname. It prefers the architecture
// of the running binary, and returns "" if it knows none.
func goarchFor(machine string) string {
	for _, goarch := range []string{runtime.GOARCH, "amd64", "arm64", "386", "arm", "riscv64", "ppc64le", "s390x"} {
		if slices.Contains(machines(goarch), machine) {
			return goarch
		}
	}
	return ""
}

// readBinary reads a file and decompresses it if the name ends in .zst. Another host will run it.
// So only those who can replace the running binary may be able to write it: root, this user, or its
// owner.
func readBinary(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	self, err := os.Stat(selfPath)
	if err != nil {
		return nil, err
	}
	owner := func(i os.FileInfo) uint32 { return i.Sys().(*syscall.Stat_t).Uid }
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || !slices.Contains([]uint32{0, uint32(os.Geteuid()), owner(self)}, owner(info)) {
		return nil, errors.New("is ignored, because other users can write it: run chown root and chmod go-w")
	}
	var r io.Reader = f
	if strings.HasSuffix(name, ".zst") {
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	}
	text, err := io.ReadAll(io.LimitReader(r, maxBinary))
	if err != nil {
		err = fmt.Errorf("cannot be read: %w", err)
	}
	return text, err
}

// checkBinary returns an error if text is not zxfer for goarch, or is of another version or commit.
// If neither binary was built under version control, the other host compares release and protocol.
func checkBinary(text []byte, goarch string, own *debug.BuildInfo) error {
	other, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil || other.Path != program {
		return errors.New("is not zxfer")
	}
	if os, arch := buildSetting(other, "GOOS"), buildSetting(other, "GOARCH"); os != "linux" || arch != goarch {
		return fmt.Errorf("is for %s/%s", os, arch)
	}
	if a, b := buildVersion(other), buildVersion(own); a != b {
		return fmt.Errorf("is of %s, and this zxfer of %s", a, b)
	}
	return nil
}

// buildVersion returns the version of a build, and its commit if known.
func buildVersion(b *debug.BuildInfo) string {
	if b == nil {
		return "no known build"
	}
	text := cmp.Or(strings.Trim(b.Main.Version, "()"), "devel")
	if revision := buildSetting(b, "vcs.revision"); revision != "" {
		text += " (" + revision + ")"
	}
	return text
}

func buildSetting(b *debug.BuildInfo, key string) string {
	for _, s := range b.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// encode returns the binary in the coding "gzip", or unchanged for any other coding.
func (b *build) encode(coding string) ([]byte, error) {
	text := b.bytes
	if text == nil {
		var err error
		if text, err = os.ReadFile(selfPath); err != nil {
			return nil, err
		}
	}
	if coding != "gzip" {
		return text, nil
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	err := z.Close()
	return out.Bytes(), err
}

// selfPath is the running binary, even if its file was replaced or removed.
const selfPath = "/proc/self/exe"

// Self describes the running binary.
type Self struct {
	ID   string // SHA-256 of the file, in hex
	Size int64
}

// ThisBinary returns the id and size of the running binary.
func ThisBinary() (Self, error) { return readSelf() }

// readSelf hashes the binary once.
var readSelf = sync.OnceValues(func() (Self, error) {
	f, err := os.Open(selfPath)
	if err != nil {
		return Self{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return Self{ID: hex.EncodeToString(h.Sum(nil)), Size: n}, err
})
