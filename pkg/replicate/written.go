package replicate

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"zxfer/pkg/fault"
)

// What becomes part of another program's file (a unit, a line of cron, of
// authorized_keys) is judged by the rules here; names of datasets and schedules
// by those of packages zfs and calendar. What passes is one word of one line there,
// whatever that program makes of quotes, %, $, ; and the like.

// Word makes of a text what may be in the name of a job or target.
func Word(s string) string { return regexp.MustCompile("[^A-Za-z0-9_-]").ReplaceAllString(s, "-") }

// CheckUser refuses what is no name of an account.
//
// https://systemd.io/USER_NAMES
func CheckUser(user string) error {
	if len(user) > 256 || !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]*$`).MatchString(user) {
		return fault.Usagef(`names of accounts are of letters, digits, "_", "-", "." and "@"`, "%q is not the name of an account", user)
	}
	return nil
}

// CheckPath refuses paths that are not absolute, or hold anything but letters,
// digits, blanks and a few signs that mean nothing to any of those programs. A
// blank must be quoted.
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
