package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// Tests wait for events instead of sleeping: a step that takes a second here can take a minute
// on a slow machine.

// nextSecond waits until the clock that ZFS reads advances to the next second. Creation times
// and many snapshot names have a resolution of one second.
func nextSecond(t *testing.T) {
	t.Helper()
	second := func() int64 {
		var now unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
		return now.Sec
	}
	for was := second(); second() == was; {
		time.Sleep(5 * time.Millisecond)
	}
}

// waitReceived waits until a process on a host, such as a zfs receive, has read n bytes. It also
// returns when p has ended. p may be nil.
func waitReceived(t *testing.T, p *process, host string, match func(argv []string) bool, n int64) {
	t.Helper()
	var pids []int
	list := true // a list of all processes costs hundreds of system calls
	require.Eventually(t, func() bool {
		if p != nil && p.ended() {
			return true
		}
		if list {
			pids = pidsOn(t, host, match)
		}
		list = len(pids) == 0
		for _, pid := range pids {
			read := ioCounter(pid, "rchar")
			if read >= n {
				return true
			}
			list = list || read == 0 // it has ended or has just started
		}
		return false
	}, testenv.Timeout(), 20*time.Millisecond, "no process has read %d bytes", n)
}

// ioCounter returns a counter of /proc/PID/io, or 0 if the process has ended.
func ioCounter(pid int, counter string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, rest, _ := strings.Cut(string(text), counter+": ")
	value, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseInt(value, 10, 64)
	return n
}

// waitEnded waits until no process on a host matches.
func waitEnded(t *testing.T, host string, match func(argv []string) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return len(pidsOn(t, host, match)) == 0 }, testenv.Timeout(), 50*time.Millisecond)
}

// waitState waits until a process reaches a state of proc(5), such as T for stopped, or ends.
func waitState(t *testing.T, pid int, state byte) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return true
		}
		after := text[strings.LastIndexByte(string(text), ')')+1:] // " S 1 ..."
		return len(after) > 1 && (after[1] == state || after[1] == 'Z')
	}, testenv.Timeout(), 5*time.Millisecond, "process %d is not in state %c", pid, state)
}
