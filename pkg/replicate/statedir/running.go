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

// Running reports whether a run, or another process, has the job's lock. It reads the kernel's
// list of locks, because an attempt to lock would block a run. It misses locks on file systems
// whose files have another device number (btrfs).
func (s *Store) Running() bool { return s.owner("lock") > 0 }

// Drilling reports whether a drill has its lock, like Running.
func (s *Store) Drilling() bool { return s.owner("drill.lock") > 0 }

// owner returns the process that has a lock of the store, or 0.
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
			return math.MaxInt32 // in another PID namespace
		}
	}
	return 0
}

// Run returns the start of the current run, or the zero time. Other holders of the lock, such as
// heal or prune, do not count.
func (s *Store) Run() time.Time {
	if pid := s.owner("lock"); pid == 0 || !isRun(commandOf(pid)) {
		return time.Time{}
	}
	info, err := os.Lstat(s.file("lock"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime() // set by lock
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

// maxCommand limits the length of a command in a message, in bytes.
const maxCommand = 200

// Holder returns the command and process that has the job's lock, such as "zxfer heal tank
// (process 4242)". It returns "" for a run, and for an unknown command.
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

// heldError is ErrRunning with the command that has the lock.
type heldError struct{ holder string }

func (e *heldError) Error() string     { return e.holder + " is running, and keeps the job from running" }
func (e *heldError) Is(err error) bool { return err == ErrRunning }
