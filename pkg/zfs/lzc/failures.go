package lzc

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"syscall"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// failures is why libzfs_core refused a request: by name, as far as it knows.
type failures struct {
	Failures []failure `json:"failures"`
	More     int       `json:"more"` // that libzfs_core counted but did not list
}

type failure struct {
	Class   string `json:"class"` // of the exception
	Errno   int    `json:"errno"`
	Message string `json:"message"`
	Name    string `json:"name"` // "" where it concerns the whole request
}

func (f *failures) Error() string {
	var all []string
	for _, x := range f.Failures {
		all = append(all, strings.TrimSpace(x.Name+" "+x.Message))
	}
	return strings.Join(all, "; ")
}

// without parts off the failures that are of kind fine: their names, and what
// is left, nil if nothing.
func (f *failures) without(op string, fine zfs.Kind) (names []string, rest *failures) {
	rest = &failures{More: f.More}
	for _, x := range f.Failures {
		if x.kind(op) == fine && x.Name != "" {
			names = append(names, x.Name)
		} else {
			rest.Failures = append(rest.Failures, x)
		}
	}
	if len(rest.Failures) == 0 && rest.More == 0 {
		rest = nil
	}
	return names, rest
}

// drop leaves out the failures that are of kind fine, and tells whether any
// is left.
func (f *failures) drop(op string, fine zfs.Kind) bool {
	f.Failures = slices.DeleteFunc(f.Failures, func(x failure) bool { return x.kind(op) == fine })
	return len(f.Failures) > 0 || f.More > 0
}

// typed makes *zfs.Error of an error of Client.call. names are those of the
// request, for a failure that has none.
func typed(op string, names []string, err error) error {
	var f *failures
	if !errors.As(err, &f) {
		return err
	}
	login := ""
	if u, err := user.Current(); err == nil {
		login = u.Username
	}
	var errs []error
	for _, x := range f.Failures {
		subject := x.Name
		if subject == "" {
			subject = finding.Some(names, 3)
		}
		k := x.kind(op)
		hint := zfs.Failure{Op: op, Subject: x.Name, User: login}
		if x.Name == "" && len(names) > 0 {
			hint.Subject = names[0]
		}
		errs = append(errs, &zfs.Error{Kind: k, Op: op, Subject: subject, Detail: x.detail(k), Hint: hint.Hint(k)})
	}
	if f.More > 0 {
		errs = append(errs, fmt.Errorf("and %d more", f.More))
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// kind tells what an error number means for the operation.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/contrib/pyzfs/libzfs_core/_error_translation.py
func (f failure) kind(op string) zfs.Kind {
	switch e := syscall.Errno(f.Errno); e {
	case syscall.EPERM, syscall.EACCES:
		return zfs.Permission
	case syscall.ENOENT, syscall.ESRCH:
		return zfs.NotFound
	case syscall.EEXIST:
		if op == zfs.OpDestroy {
			return zfs.Busy // the snapshot has clones
		}
		return zfs.Exists
	case syscall.EBUSY:
		return zfs.Busy
	case syscall.ENOSPC, syscall.EDQUOT:
		return zfs.NoSpace
	case syscall.EROFS, syscall.EIO, syscall.EAGAIN:
		return zfs.PoolFault
	case syscall.ENAMETOOLONG, syscall.E2BIG:
		return zfs.InvalidName
	case syscall.ENOTSUP:
		return zfs.Feature
	case syscall.EXDEV, syscall.ENODEV:
		if op == zfs.OpEstimate {
			return zfs.NoBase
		}
		return zfs.NotFound // PoolNotFound
	case syscall.EINVAL:
		// pyzfs takes a base that does not exist for an illegal snapshot
		// name if it is a bookmark; names were checked before.
		if op == zfs.OpEstimate && f.Class == "NameInvalid" {
			return zfs.NotFound
		}
	}
	return zfs.Unknown
}

func (f failure) detail(k zfs.Kind) string {
	if k == zfs.NotFound && f.Class == "NameInvalid" {
		return "incremental source does not exist"
	}
	return strings.ToLower(f.Message)
}
