package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// JobFile is the job file that a switch changes.
type JobFile struct {
	Path string
	Jobs *replicate.File

	edit    replicate.RoleEdit
	changes bool
}

// check refuses a file that cannot be changed safely: one that is a symlink or that belongs to
// another user, and one whose text RoleEdit refuses.
func (f *JobFile) check() error {
	old, text, err := f.apply()
	if err != nil {
		return err
	}
	if f.changes = !bytes.Equal(old, text); !f.changes {
		return nil
	}
	info, err := os.Lstat(f.Path)
	if err != nil {
		return err
	}
	hint := "change it by hand, then run the same command again"
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fault.Refusef("name the file itself: --config FILE", "%s is not a regular file", f.Path)
	case !ok || os.Geteuid() != 0 && int(stat.Uid) != os.Geteuid():
		return fault.Refusef(hint, "%s belongs to another user", f.Path)
	}
	if err := unix.Access(filepath.Dir(f.Path), unix.W_OK); err != nil {
		return fault.Refusef(hint, "cannot replace %s: %w", f.Path, err)
	}
	return nil
}

func (f *JobFile) apply() (old, text []byte, err error) {
	if old, err = os.ReadFile(f.Path); err != nil {
		return nil, nil, err
	}
	text, err = f.edit.Apply(f.Path, old)
	return old, text, err
}

// added returns the appended job as later commands read it, or nil.
func (f *JobFile) added() *replicate.Job {
	if f.edit.Add == nil {
		return nil
	}
	_, text, err := f.apply()
	if err != nil {
		return nil
	}
	jobs, err := replicate.Parse(f.Path, text)
	if err != nil {
		return nil
	}
	return jobs.Find(f.edit.Add.Name)
}

// needs reports whether check found a change to make.
func (f *JobFile) needs() bool { return f.changes }

func (f *JobFile) describe() string {
	words := []string{fmt.Sprintf("%s: mark job %q as standby", f.Path, f.edit.Standby)}
	if f.edit.Active != "" {
		words = append(words, fmt.Sprintf("activate job %q", f.edit.Active))
	}
	if f.edit.Add != nil {
		words = append(words, fmt.Sprintf("append job %q", f.edit.Add.Name))
	}
	return strings.Join(words, ", ")
}

// write applies the change to the file as it is now. It keeps mode and owner.
func (f *JobFile) write() error {
	old, text, err := f.apply()
	if err != nil || bytes.Equal(old, text) {
		return err
	}
	return statedir.ReplaceKeepingOwner(f.Path, text)
}
