package zfsexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxUsers bounds how many programs are named that have a device open.
const maxUsers = 3

// inUse adds to out what programs have devices open, as far as they can be seen:
// devices are what was asked for by what a program has open then. All are looked
// for at once, as each look is one at all programs.
func inUse(ctx context.Context, devices, out map[string]string) error {
	users := map[string][]string{}
	processes, _ := filepath.Glob("/proc/[0-9]*") // only a pattern that is none fails
	for _, dir := range processes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		open, _ := os.ReadDir(dir + "/fd") // it may have ended, or be another's
		for _, f := range open {
			real, err := os.Readlink(dir + "/fd/" + f.Name())
			if _, asked := devices[real]; err != nil || !asked {
				continue
			}
			if u := programIn(dir); u != "" && !slices.Contains(users[real], u) && len(users[real]) < maxUsers {
				users[real] = append(users[real], u)
			}
		}
	}
	for real, path := range devices {
		if len(users[real]) > 0 {
			out[path] = "is in use by " + strings.Join(users[real], ", ")
		} else if exclusive(real) {
			out[path] = "is in use"
		}
	}
	return nil
}

// programIn names a process by its directory in /proc; not this one, and not udev, which looks at each device for a
// moment.
func programIn(dir string) string {
	comm, _ := os.ReadFile(dir + "/comm")
	name, pid := strings.TrimSpace(string(comm)), filepath.Base(dir)
	if pid == strconv.Itoa(os.Getpid()) || slices.Contains([]string{"systemd-udevd", "(udev-worker)", "udevd"}, name) {
		return ""
	}
	return fmt.Sprintf("%q (process %s)", name, pid)
}

// exclusive tells whether somebody holds a device exclusively: what is mounted, swap,
// and what is stacked on it or on its partitions. To claim it changes nothing.
func exclusive(real string) bool {
	fd, err := syscall.Open(real, syscall.O_RDONLY|syscall.O_EXCL|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return errors.Is(err, syscall.EBUSY)
}
