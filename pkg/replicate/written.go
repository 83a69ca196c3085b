package replicate

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"zxfer/pkg/fault"
)

// These rules check values for other programs' files (units, crontab, authorized_keys). Packages
// zfs and calendar check dataset names and schedules. A valid value is one word on one line in any
// of these files, regardless of their special characters, such as quotes, %, $ and ;.

// Word replaces characters that are invalid in names of jobs and targets with "-".
func Word(s string) string { return regexp.MustCompile("[^A-Za-z0-9_-]").ReplaceAllString(s, "-") }

// CheckUser returns an error if user is not a valid account name.
//
// https://systemd.io/USER_NAMES
func CheckUser(user string) error {
	if len(user) > 256 || !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]*$`).MatchString(user) {
		return fault.Usagef(`names of accounts are of letters, digits, "_", "-", "." and "@"`, "%q is not the name of an account", user)
	}
	return nil
}

// CheckPath returns an error unless p is an absolute path of letters, digits, blanks and a few
// signs without special meaning. The caller must quote blanks.
func CheckPath(p string) error {
	odd := func(r rune) bool {
		return r == utf8.RuneError || !unicode.In(r, unicode.L, unicode.M, unicode.N) && !strings.ContainsRune(" /._-+@,:=~", r)
	}
	if !path.IsAbs(p) || strings.ContainsFunc(p, odd) {
		return fault.Usagef(`choose a path of letters, digits and any of "/", ".", "_", "-", "+", "@", ",", ":", "=", "~"`,
			"%q is not an absolute path that can be written into another program's file", p)
	}
	return nil
}
