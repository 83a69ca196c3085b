package lzc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// failures lists the errors of a request that libzfs_core refused.
type failures struct {
	Failures []failure `json:"failures"`
	More     int       `json:"more"` // number of errors that libzfs_core did not list
}

type failure struct {
	Class   string `json:"class"` // of the exception
	Errno   int    `json:"errno"`
	Message string `json:"message"`
	Name    string `json:"name"` // "" for the whole request
}

func (f *failures) Error() string {
	var all []string
	for _, x := range f.Failures {
		all = append(all, strings.TrimSpace(x.Name+" "+x.Message))
	}
	return strings.Join(all, "; ")
}

// without splits f: it returns the names whose failures have the kind fine, and the rest, nil
// if empty.
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

// drop removes the failures of kind fine, and reports whether any failure is left.
func (f *failures) drop(op string, fine zfs.Kind) bool {
	f.Failures = slices.DeleteFunc(f.Failures, func(x failure) bool { return x.kind(op) == fine })
	return len(f.Failures) > 0 || f.More > 0
}

// zfsErrors converts a *failures in err to *zfs.Error. It uses names, those of the request, for
// failures without a name.
func zfsErrors(op string, names []string, err error) error {
	var f *failures
	if !errors.As(err, &f) {
		return err
	}
	var errs []error
	for _, x := range f.Failures {
		k := x.kind(op)
		hint := zfs.Failure{Op: op, Subject: x.Name, User: cli.UserName()}
		if x.Name == "" && len(names) > 0 {
			hint.Subject = names[0]
		}
		errs = append(errs, &zfs.Error{Kind: k, Op: op, Subject: cmp.Or(x.Name, finding.Some(names, 3)), Detail: x.detail(k), Hint: hint.Hint(k)})
	}
	if f.More > 0 {
		errs = append(errs, fmt.Errorf("and %d more", f.More))
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// kind returns the kind of an error number, which depends on the operation.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/contrib/pyzfs/libzfs_core/_error_translation.py
func (f failure) kind(op string) zfs.Kind {
	e := syscall.Errno(f.Errno)
	switch {
	case op == zfs.OpDestroy && e == syscall.EEXIST:
		return zfs.Busy // the snapshot has clones
	case op == zfs.OpEstimate && (e == syscall.EXDEV || e == syscall.ENODEV):
		return zfs.NoBase
	case op == zfs.OpEstimate && e == syscall.EINVAL && f.Class == "NameInvalid":
		// For a bookmark that does not exist as incremental source, pyzfs reports an illegal
		// snapshot name. Names are valid at this point.
		return zfs.NotFound
	}
	return cmp.Or(map[syscall.Errno]zfs.Kind{
		syscall.EPERM: zfs.Permission, syscall.EACCES: zfs.Permission,
		syscall.ENOENT: zfs.NotFound, syscall.ESRCH: zfs.NotFound,
		syscall.EXDEV: zfs.NotFound, syscall.ENODEV: zfs.NotFound, // PoolNotFound
		syscall.EEXIST: zfs.Exists,
		syscall.EBUSY:  zfs.Busy,
		syscall.ENOSPC: zfs.NoSpace, syscall.EDQUOT: zfs.NoSpace,
		syscall.EROFS: zfs.PoolFault, syscall.EIO: zfs.PoolFault, syscall.EAGAIN: zfs.PoolFault,
		syscall.ENAMETOOLONG: zfs.InvalidName, syscall.E2BIG: zfs.InvalidName,
		syscall.ENOTSUP: zfs.Feature,
	}[e], zfs.Unknown)
}

func (f failure) detail(k zfs.Kind) string {
	if k == zfs.NotFound && f.Class == "NameInvalid" {
		return "incremental source does not exist"
	}
	return strings.ToLower(f.Message)
}
