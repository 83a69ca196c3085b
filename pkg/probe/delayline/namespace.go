package delayline

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// In runs f in a network namespace: what sockets it opens stay there. f must
// open them itself, not in another goroutine.
func In(namespace string, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread is not unlocked: it ends with this goroutine, and nothing
		// else ever runs in the namespace.
		runtime.LockOSThread()
		done <- func() error {
			ns, err := os.Open(filepath.Join("/run/netns", namespace))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("namespace %s: %w", namespace, err)
			}
			return f()
		}()
	}()
	return <-done
}
