package importer

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// command is one syncoid command line.
type command struct {
	where   string
	source  string
	target  string
	options []option // in the order of the line
}

// option is a flag of syncoid under its long name, with its value.
type option struct{ name, value string }

// has reports whether a flag is set.
func (c *command) has(name string) bool {
	return slices.ContainsFunc(c.options, func(o option) bool { return o.name == name })
}

// findCommands finds the syncoid commands in a shell line. Each may follow other words, such as
// sudo, or flock with a lock file named syncoid.
func findCommands(where, line string) ([]*command, error) {
	words, err := shellquote.Split(line)
	if err != nil {
		return nil, fault.Usagef("write one command per line, or continue lines with a backslash", "%s: %w", where, err)
	}
	var out []*command
	for _, argv := range simpleCommands(words) {
		var failed error
		for i, w := range argv {
			if path.Base(w) != "syncoid" {
				continue
			}
			c := &command{where: where}
			if err := c.parse(argv[i+1:]); err != nil {
				failed = err
				continue
			}
			out, failed = append(out, c), nil
			break
		}
		if failed != nil {
			return nil, failed
		}
	}
	return out, nil
}

// simpleCommands splits a shell line at ; && || | and cuts each command at its redirections.
// Variables and substitutions stay unexpanded.
func simpleCommands(words []string) [][]string {
	out := [][]string{nil}
	redirected := false
	for _, w := range words {
		bare, ends := strings.CutSuffix(w, ";")
		switch {
		case w == "&&" || w == "||" || w == "|" || w == "&" || w == ";":
			out, redirected = append(out, nil), false
			continue
		case regexp.MustCompile(`^([0-9]|&)?(>>?|<)`).MatchString(w):
			redirected = true
		case !redirected:
			out[len(out)-1] = append(out[len(out)-1], bare)
		}
		if ends {
			out, redirected = append(out, nil), false
		}
	}
	return out
}

// parse parses the words after "syncoid". Flags may be anywhere, with one dash or two.
func (c *command) parse(argv []string) error {
	var bare []string
	for len(argv) > 0 {
		w := argv[0]
		argv = argv[1:]
		if w == "--" {
			bare = append(bare, argv...)
			break
		}
		if len(w) < 2 || w[0] != '-' {
			bare = append(bare, w)
			continue
		}
		name, value, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(w, "-"), "-"), "=")
		if long := map[string]string{"r": "recursive", "c": "sshcipher", "o": "sshoption"}[name]; long != "" {
			name = long
		}
		valued, known := syncoidFlags()[name]
		if !known {
			return fault.Usagef("omit it, or write its full name from syncoid --help", "%s: syncoid has no flag --%s", c.where, name)
		}
		if valued && !given {
			if len(argv) == 0 {
				return fault.Usagef("", "%s: --%s requires a value", c.where, name)
			}
			value, argv = argv[0], argv[1:]
		}
		c.options = append(c.options, option{name, value})
	}
	if len(bare) != 2 {
		return fault.Usagef("write syncoid [FLAGS] SOURCE TARGET", "%s: syncoid requires a source and a target, but got %d names: %q", c.where, len(bare), bare)
	}
	c.source, c.target = bare[0], bare[1]
	return nil
}

// syncoidFlags returns syncoid's flags. The value is true if the flag takes a value.
//
// https://github.com/jimsalterjrs/sanoid/blob/v2.3.0/syncoid (GetOptions)
func syncoidFlags() map[string]bool {
	flags := map[string]bool{}
	for _, f := range strings.Fields(`no-command-checks monitor-version dumpsnaps recursive debug quiet no-stream no-sync-snap no-resume
		skip-parent no-clone-handling no-privilege-elevation force-delete no-clone-rollback no-rollback create-bookmark use-hold
		keep-sync-snap preserve-recordsize preserve-properties delete-target-snapshots help version`) {
		flags[f] = false
	}
	for _, f := range strings.Fields(`compress sendoptions recvoptions source-bwlimit target-bwlimit sshconfig sshkey sshport sshcipher
		sshoption exclude exclude-datasets include-snaps exclude-snaps identifier pv-options mbuffer-size insecure-direct-connection`) {
		flags[f] = true
	}
	return flags
}
