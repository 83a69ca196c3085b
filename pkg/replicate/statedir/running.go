package statedir

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/kballard/go-shellquote"
	"golang.org/x/sys/unix"
)

// Running reports whether a run of the job is in progress, or something else that keeps
// the job from running. It reads the kernel's list of locks: an attempt to lock would keep
// a run away. It sees nothing if a file system gives files another device than its own
// (btrfs).
func (s *Store) Running() bool { return s.owner("lock") > 0 }

// Drilling is Running for drills.
func (s *Store) Drilling() bool { return s.owner("drill.lock") > 0 }

// owner returns the process that holds a lock of the store, or 0 if none is seen.
func (s *Store) owner(name string) int {
	var st unix.Stat_t
	if unix.Lstat(s.file(name), &st) != nil {
		return 0
	}
	all, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for l := range strings.Lines(string(all)) { // "1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF"
		f := strings.Fields(l)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == inode {
			pid, err := strconv.Atoi(f[4])
			if err == nil && pid > 0 {
				return pid
			}
			return math.MaxInt32 // of another PID namespace
		}
	}
	return 0
}

// Run returns since when a run of the job is in progress, or the zero time if none is seen.
// A heal or prune that holds the lock is no run.
func (s *Store) Run() time.Time {
	if pid := s.owner("lock"); pid == 0 || !isRun(commandOf(pid)) {
		return time.Time{}
	}
	info, err := os.Lstat(s.file("lock"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime() // which lock sets
}

// commandOf returns the arguments of a process, or nil if they are unknown.
func commandOf(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

func isRun(args []string) bool { return len(args) > 2 && args[1] == "replicate" && args[2] == "run" }

// maxCommand is how much of a command a message has, in bytes.
const maxCommand = 200

// Holder returns the command that holds the lock of the job, such as "zxfer heal tank",
// with its process. It returns "" for a run of the job, and if the command is unknown.
func (s *Store) Holder() string { return s.holder("lock") }

func (s *Store) holder(name string) string {
	pid := s.owner(name)
	if pid == 0 {
		return ""
	}
	args := commandOf(pid)
	if len(args) < 2 || isRun(args) {
		return ""
	}
	command := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, shellquote.Join(append([]string{filepath.Base(args[0])}, args[1:]...)...))
	if len(command) > maxCommand {
		command = strings.ToValidUTF8(command[:maxCommand], "") + "..."
	}
	return fmt.Sprintf("%s (process %d)", command, pid)
}

// heldError is ErrRunning with the command that holds the lock.
type heldError struct{ by string }

func (e *heldError) Error() string     { return e.by + " is running, and keeps the job from running" }
func (e *heldError) Is(err error) bool { return err == ErrRunning }
