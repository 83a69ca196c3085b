package notify

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// maxSecret bounds the size of a secret file in bytes.
const maxSecret = 4096

// ReadSecret returns the first line of a file that only its owner and its group may read. The owner is root,
// this account or account, the user of the job ("" = root).
func ReadSecret(name, account string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		create := []string{"install", "-D", "-m", "600", "/dev/null", name}
		if account != "" {
			create = slices.Insert(create, 4, "-o", account)
		}
		return "", fault.Failf("create it: "+zfs.CommandLine(create)+"\nwrite the ping URL of the check into its first line",
			"%w", err)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	of, _ := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", name)
	case info.Mode().Perm()&0o027 != 0:
		return "", fault.Failf(zfs.CommandLine([]string{"chmod", "g-w,o=", name}), "%s: other users may read it, or its group may change it", name)
	case of == nil || of.Uid != 0 && int(of.Uid) != os.Geteuid() && !isUser(of.Uid, account):
		return "", fault.Failf(zfs.CommandLine([]string{"chown", cmp.Or(account, "root"), name}), "%s belongs to another user", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" || len(text) > maxSecret {
		return "", fmt.Errorf("%s: its first line is empty, or it has more than %d bytes", name, maxSecret)
	}
	return line, nil
}

// isUser reports whether a user ID belongs to an account.
func isUser(uid uint32, account string) bool {
	u, err := user.Lookup(account)
	return account != "" && err == nil && u.Uid == strconv.FormatUint(uint64(uid), 10)
}
