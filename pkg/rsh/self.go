package rsh

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"zxfer/pkg/fault"
)

// selfPath is the running program, also where its file was replaced or removed.
const selfPath = "/proc/self/exe"

// Self is the running binary.
type Self struct {
	ID   string // SHA-256 of the file, in hex
	Size int64
}

// readSelf is done once: hashing takes a moment.
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

// ThisBinary identifies the running zxfer.
func ThisBinary() (Self, error) { return readSelf() }

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

// runsOn refuses a host where this binary cannot run, by what uname says there.
func runsOn(system, machine string) error {
	switch {
	case system != "Linux":
		return fault.Refusef("zxfer runs on Linux only", "its system is %s, this zxfer is for Linux", system)
	case !slices.Contains(machines(runtime.GOARCH), machine):
		return fault.Refusef("build zxfer for that machine (GOARCH=… go build ./cmd/zxfer) and install it there",
			"its machine is %s, this zxfer is for %s", machine, runtime.GOARCH)
	}
	return nil
}
