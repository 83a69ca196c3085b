package files

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

type xattr struct {
	name  string
	value []byte
}

func (x xattr) acl() bool { return strings.HasPrefix(x.name, "system.") }

// readXattrs returns the extended attributes of an open file, sorted by name, or none if the
// filesystem does not support them.
func readXattrs(f *os.File) (out []xattr, err error) {
	list, err := readSized(func(buf []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), buf) })
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if name == "" {
			continue
		}
		value, err := readSized(func(buf []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, buf) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return out, err
		}
		out = append(out, xattr{name, value})
	}
	return out, nil
}

// readSized calls get for the size, and again with a buffer of that size.
func readSized(get func([]byte) (int, error)) ([]byte, error) {
	n, err := get(nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	buf := make([]byte, n)
	n, err = get(buf)
	return buf[:max(n, 0)], err
}
