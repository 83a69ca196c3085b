package statedir

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/kballard/go-shellquote"
	"golang.org/x/sys/unix"

	"zxfer/pkg/filelock"
)

// ErrRunning is the error of Lock if another process has the lock.
var ErrRunning = errors.New("the job is running already")

// Lock prevents concurrent runs of a job. If wait is false and the lock is taken, it returns
// ErrRunning. The kernel releases the lock when the process ends.
func (s *Store) Lock(ctx context.Context, wait bool) (unlock func(), err error) {
	return s.lock(ctx, "lock", wait, stateFile, cacheFile, runLog)
}

// LockDrill prevents concurrent drills of a job, or returns ErrRunning. Runs are not affected: ZFS
// protects the snapshot of a drill's clone.
func (s *Store) LockDrill(ctx context.Context) (unlock func(), err error) {
	return s.lock(ctx, "drill.lock", false, drillFile, drillLog)
}

// lock locks a file. Then it deletes what killed processes left of the files that only the holder of the lock replaces.
func (s *Store) lock(ctx context.Context, name string, wait bool, replaces ...string) (unlock func(), err error) {
	f, err := s.open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	unlock, err = lock(ctx, f, wait)
	if err == nil {
		_ = f.Truncate(0) // Run uses this time as the start. An error affects only Run.
		s.removeTemporary(replaces...)
	}
	if by := s.holder(name); errors.Is(err, ErrRunning) && by != "" {
		err = &heldError{by}
	}
	return unlock, err
}

// lockPoll is the interval of attempts to lock. A blocking flock(2) could not be canceled.
const lockPoll = 200 * time.Millisecond

// lock locks a file. If it fails, it closes f.
func lock(ctx context.Context, f *os.File, wait bool) (unlock func(), err error) {
	for {
		if err = filelock.Try(f); err == nil {
			return func() { _ = filelock.Close(f) }, nil
		}
		switch {
		case !errors.Is(err, filelock.ErrLocked):
		case !wait:
			err = ErrRunning
		default:
			select {
			case <-time.After(lockPoll):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		_ = f.Close() // the first error matters
		return nil, err
	}
}

// WithLock calls f while no other process does so for the same state directory.
func WithLock(ctx context.Context, stateDir string, f func() error) error {
	unlock, err := lockAll(ctx, stateDir, ".lock", true)
	if err != nil {
		return err
	}
	defer unlock()
	All(stateDir).removeTemporary()
	return f()
}

// LockDisk prevents other jobs with the same state directory from using a disk, by the GUID of its
// pool. If wait is false and the lock is taken, it returns ErrRunning.
func LockDisk(ctx context.Context, stateDir string, guid uint64, wait bool) (unlock func(), err error) {
	return lockAll(ctx, stateDir, fmt.Sprintf("disk-%d.lock", guid), wait)
}

// lockAll locks a file that concerns all jobs of a state directory. Other users cannot open it: who can open
// a file, or the directory, can lock it forever.
func lockAll(ctx context.Context, stateDir, name string, wait bool) (unlock func(), err error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil { // before the first run
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(stateDir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return lock(ctx, f, wait)
}

// Running reports whether a run, or another process, has the job's lock. It reads the kernel's
// list of locks, because an attempt to lock would block a run. It misses locks on file systems
// whose files have another device number (btrfs).
func (s *Store) Running() bool { return s.owner("lock") > 0 }

// Drilling reports whether a drill has its lock, like Running.
func (s *Store) Drilling() bool { return s.owner("drill.lock") > 0 }

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

func isRun(args []string) bool { return len(args) > 2 && args[1] == "replicate" && args[2] == "run" }

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

// maxCommand limits the length of a command in a message, in bytes.
const maxCommand = 200

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

// commandOf returns the arguments of a process, or nil if they are unknown.
func commandOf(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// heldError is ErrRunning with the command that has the lock.
type heldError struct{ holder string }

func (e *heldError) Error() string { return e.holder + " is running, and keeps the job from running" }

func (e *heldError) Is(err error) bool { return err == ErrRunning }

// abandoned is the age of a temporary file whose writer was certainly killed.
const abandoned = 24 * time.Hour

// removeTemporary deletes the temporary files that killed processes left in the store: those for files that only the
// holder of a lock replaces, and older ones for any file. It ignores errors: the files only take space.
func (s *Store) removeTemporary(locked ...string) {
	dir, err := openDirectory(s.dir)
	if err != nil {
		return
	}
	defer dir.Close()
	list, err := dir.Open(".")
	if err != nil {
		return
	}
	defer list.Close()
	found, _ := list.ReadDir(maxFiles) // another user may own the directory
	for _, e := range found {
		hex, ok := strings.CutSuffix(e.Name(), temporarySuffix)
		dash := strings.LastIndexByte(hex, '-') + 1
		if _, err := strconv.ParseUint(hex[dash:], 16, 64); !ok || err != nil || hex[0] != '.' || !e.Type().IsRegular() {
			continue
		}
		ours := slices.ContainsFunc(locked, func(base string) bool { return temporaryPrefix(base) == hex[:dash] })
		if info, err := e.Info(); ours || err == nil && time.Since(info.ModTime()) > abandoned {
			_ = dir.Remove(e.Name())
		}
	}
}

// maxFiles is the number of files among which removeTemporary searches.
const maxFiles = 10_000
