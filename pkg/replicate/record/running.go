package record

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Running tells whether a run of the job, or what keeps it from running, is under way,
// as far as can be seen: by the kernel's list of locks, as to try the lock would keep a
// run from it. Where a file system gives files another device than its own (btrfs) none
// is seen.
func (s *Store) Running() bool { return s.locked("lock") }

// Drilling is Running for drills.
func (s *Store) Drilling() bool { return s.locked("drill.lock") }

func (s *Store) locked(name string) bool {
	var st unix.Stat_t
	if unix.Lstat(s.file(name), &st) != nil {
		return false
	}
	all, err := os.ReadFile("/proc/locks")
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for l := range strings.Lines(string(all)) { // "1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF"
		f := strings.Fields(l)
		if err == nil && len(f) > 5 && f[1] == "FLOCK" && f[5] == inode {
			return true
		}
	}
	return false
}
