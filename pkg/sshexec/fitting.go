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
	"syscall"

	"github.com/kballard/go-shellquote"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/fault"
)

// program is the package that zxfer is made of.
const program = "zxfer/cmd/zxfer"

// packaged is where a package keeps the zxfers for other machines.
const packaged = "/usr/lib/zxfer"

// maxBinary bounds such a file, in bytes.
const maxBinary = 256 << 20

// build is a zxfer that is copied to a host.
type build struct {
	id    string
	bytes []byte // nil for the running one, which is read where it is needed
}

// self returns the build that hosts of the same architecture get: the running zxfer,
// unless a test has set another.
func (o *Options) self() (*build, error) {
	if o.own != nil {
		return o.own, nil
	}
	self, err := ThisBinary()
	return &build{id: self.ID}, err
}

// machines are uname's words for what a binary for goarch may run on.
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

// archOf is what to build for so that it runs on a machine, by what uname says
// there: what this zxfer is for where that will do, "" where nothing is known to.
func archOf(machine string) string {
	for _, goarch := range []string{runtime.GOARCH, "amd64", "arm64", "386", "arm", "riscv64", "ppc64le", "s390x"} {
		if slices.Contains(machines(goarch), machine) {
			return goarch
		}
	}
	return ""
}

// binaryFor is the zxfer for a system and a machine: nil for the running one. Others
// are in files beside it or in the package's directory.
func (o *Options) binaryFor(system, machine string) (*build, error) {
	goarch := archOf(machine)
	switch {
	case system != "Linux":
		return nil, fault.Refusef("zxfer runs on Linux only", "its system is %s, this zxfer is for Linux", system)
	case goarch == runtime.GOARCH:
		return nil, nil
	case goarch == "":
		return nil, fault.Refusef("zxfer send has --wire nc for a host without zxfer", "its machine is %s, this zxfer is for %s", machine, runtime.GOARCH)
	}
	ours, _ := debug.ReadBuildInfo()
	places := o.places
	if places == nil {
		places = []string{packaged}
		if self, err := os.Executable(); err == nil {
			places = []string{filepath.Dir(self), packaged}
		}
	}
	for _, dir := range places {
		for _, name := range []string{"zxfer-linux-" + goarch, "zxfer-linux-" + goarch + ".zst"} {
			file := filepath.Join(dir, name)
			text, err := readBinary(file)
			if os.IsNotExist(err) {
				continue
			}
			if err = cmp.Or(err, judge(text, goarch, ours)); err != nil {
				return nil, fault.Refusef("put the one of this version there, from the release that this zxfer is of", "its machine is %s, and %s %w", machine, file, err)
			}
			sum := sha256.Sum256(text)
			return &build{hex.EncodeToString(sum[:]), text}, nil
		}
	}
	file := filepath.Join(places[0], "zxfer-linux-"+goarch)
	return nil, fault.Refusef(fmt.Sprintf("put it there, or into %s: it is in the release's tarball, or in the source of this version\n%s", places[len(places)-1],
		"CGO_ENABLED=0 GOARCH="+goarch+" go build -o="+shellquote.Join(file)+" ./cmd/zxfer"),
		"its machine is %s, this zxfer is for %s, and there is no %s", machine, runtime.GOARCH, file)
}

// readBinary reads a file, or what one whose name ends in .zst holds. As it is
// going to be run elsewhere, nobody may have written it who could not write the running
// one, either: root, this user, or its owner.
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
		return nil, errors.New("is not used: others may write it, until chown root and chmod go-w")
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

// judge tells what keeps a binary from being taken for the zxfer of this build for
// goarch: that of another version or commit, or none. Where neither was built under
// version control, its own word on the other host decides, as to the release and the
// protocol.
func judge(text []byte, goarch string, ours *debug.BuildInfo) error {
	theirs, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil || theirs.Path != program {
		return errors.New("is no zxfer")
	}
	if os, arch := setting(theirs, "GOOS"), setting(theirs, "GOARCH"); os != "linux" || arch != goarch {
		return fmt.Errorf("is for %s/%s", os, arch)
	}
	if a, b := buildOf(theirs), buildOf(ours); a != b {
		return fmt.Errorf("is of %s, and this zxfer of %s", a, b)
	}
	return nil
}

// buildOf tells the version of a build, and the commit if it is known.
func buildOf(b *debug.BuildInfo) string {
	if b == nil {
		return "no known build"
	}
	text := cmp.Or(strings.Trim(b.Main.Version, "()"), "devel")
	if revision := setting(b, "vcs.revision"); revision != "" {
		text += " (" + revision + ")"
	}
	return text
}

func setting(b *debug.BuildInfo, key string) string {
	for _, s := range b.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// packed is the build as it is sent: in coding "gzip", or as it is.
func (b *build) packed(coding string) ([]byte, error) {
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
