package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"zxfer/pkg/finding"
)

// aPartition is how the kernel calls one of a device whose own name ends in a digit.
var aPartition = regexp.MustCompile(`p[0-9]+$`)

// inUse adds to out which programs have devices open, or partitions of them, as far as
// they can be seen. devices has the path that was asked for by device node. A program may
// have opened another node of the same device: its number counts. inUse looks at all
// programs once for all devices.
func inUse(ctx context.Context, devices, out map[string]string) error {
	numbers := map[uint64]string{}
	for node := range devices {
		if n := blockNumber(node); n != 0 {
			numbers[n] = node
		}
	}
	users := map[string][]string{}
	processes, _ := filepath.Glob("/proc/[0-9]*") // only a pattern that is none fails
	for _, dir := range processes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		open, _ := os.ReadDir(dir + "/fd") // it may have ended, or be another's
		for _, f := range open {
			real, _ := os.Readlink(dir + "/fd/" + f.Name()) // "" where it was closed
			if _, asked := devices[real]; !asked && len(numbers) > 0 && strings.HasPrefix(real, "/") {
				if node := numbers[blockNumber(dir+"/fd/"+f.Name())]; node != "" {
					real = node
				}
			}
			if _, asked := devices[real]; !asked {
				real = aPartition.ReplaceAllString(real, "")
			}
			if _, asked := devices[real]; !asked {
				continue
			}
			if u := programIn(dir); u != "" && !slices.Contains(users[real], u) {
				users[real] = append(users[real], u)
			}
		}
	}
	for real, path := range devices {
		if len(users[real]) > 0 {
			out[path] = "is in use by " + finding.Some(users[real], 3)
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
