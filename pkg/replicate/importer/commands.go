package importer

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// command is one syncoid command line.
type command struct {
	where    string
	schedule string // calendar event of its cron line, "" without one
	source   string
	target   string
	options  []option // in the order of the line
}

// option is a flag of syncoid under its long name, with its value.
type option struct{ name, value string }

// has tells whether a flag is set.
func (c *command) has(name string) bool {
	return slices.ContainsFunc(c.options, func(o option) bool { return o.name == name })
}

// all are the values of a flag.
func (c *command) all(name string) []string {
	var out []string
	for _, o := range c.options {
		if o.name == name {
			out = append(out, o.value)
		}
	}
	return out
}

// parseCommands finds the syncoid command lines of a text: alone, in a crontab,
// in a script, or behind ExecStart= of a unit. Other lines that do something
// are reported.
func (s *state) parseCommands(file, text string) ([]*command, error) {
	var out []*command
	for _, l := range logicalLines(text) {
		where := fmt.Sprintf("%s:%d", file, l.number)
		content := strings.TrimSpace(l.text)
		if content == "" || content[0] == '#' || content[0] == ';' || content[0] == '[' {
			continue
		}
		if !strings.Contains(content, "syncoid") {
			if !regexp.MustCompile(`^[A-Za-z_]\w*\s*=`).MatchString(content) {
				s.note(nil, where, content, Dropped, "it is no syncoid command")
			}
			continue
		}
		content, schedule, err := cutSchedule(content)
		if err != nil {
			return nil, fault.Usagef("write the five fields of cron, or the command alone", "%s: %w", where, err)
		}
		content = strings.TrimLeft(strings.TrimPrefix(content, "ExecStart="), "-@:+!")
		words, err := shellquote.Split(content)
		if err != nil {
			return nil, fault.Usagef("one command with its quotes goes on one line, or on lines that end in a backslash", "%s: %w", where, err)
		}
		for _, argv := range simpleCommands(words) {
			c, err := findCommand(where, argv)
			if err != nil {
				return nil, err
			}
			if c != nil {
				c.schedule = schedule
				out = append(out, c)
			}
		}
	}
	if len(out) == 0 {
		return nil, fault.Usagef("write syncoid [FLAGS] SOURCE TARGET", "%s: there is no syncoid command in it", file)
	}
	return out, nil
}

// findCommand finds syncoid among the words of a command: behind what starts it
// (sudo, flock with a lock that may be called syncoid, too). nil without one.
func findCommand(where string, argv []string) (*command, error) {
	var failed error
	for i, w := range argv {
		if path.Base(w) != "syncoid" {
			continue
		}
		c := &command{where: where}
		err := c.parse(argv[i+1:])
		if err == nil {
			return c, nil
		}
		if failed == nil || !strings.Contains(err.Error(), "wants a source") {
			failed = err
		}
	}
	return nil, failed
}

// logical is a line with those that a backslash continues it on.
type logical struct {
	text   string
	number int // of its first line
}

func logicalLines(text string) []logical {
	var out []logical
	n, open := 0, false
	for raw := range strings.Lines(text) {
		n++
		l := strings.TrimRight(raw, "\r\n")
		head, continued := strings.CutSuffix(l, `\`)
		if open {
			out[len(out)-1].text += " " + head
		} else {
			out = append(out, logical{text: head, number: n})
		}
		open = continued
	}
	return out
}

// cutSchedule cuts cron's fields off a line.
func cutSchedule(l string) (rest, schedule string, err error) {
	if l[0] == '@' {
		word, rest, _ := strings.Cut(l, " ")
		spec, ok := cronWords()[word]
		if !ok {
			return "", "", fmt.Errorf("%s is no time that a calendar event can say", word)
		}
		return rest, spec, nil
	}
	if l[0] != '*' && (l[0] < '0' || l[0] > '9') {
		return l, "", nil
	}
	f := strings.Fields(l)
	if len(f) < 6 {
		return "", "", fmt.Errorf("%q begins with a time of cron that is too short", l)
	}
	if schedule, err = cron(f[:5]); err != nil {
		return "", "", err
	}
	rest = l
	for _, field := range f[:5] {
		rest = strings.TrimLeft(strings.TrimPrefix(rest, field), " \t")
	}
	return rest, schedule, nil
}

// simpleCommands takes a line of the shell apart at ; && || | and leaves out
// redirections. Variables and substitutions stay as they are written.
func simpleCommands(words []string) [][]string {
	out := [][]string{nil}
	skip := false
	for _, w := range words {
		switch {
		case skip:
			skip = false
		case w == ";" || w == "&&" || w == "||" || w == "|" || w == "&":
			out = append(out, nil)
		case regexp.MustCompile(`^([0-9]|&)?(>>?|<)(&[0-9])?$`).MatchString(w):
			skip = !strings.Contains(strings.TrimLeft(w, "&"), "&")
		case regexp.MustCompile(`^([0-9]|&)?(>>?|<)`).MatchString(w):
		default:
			bare, ends := strings.CutSuffix(w, ";")
			out[len(out)-1] = append(out[len(out)-1], bare)
			if ends {
				out = append(out, nil)
			}
		}
	}
	return out
}

// syncoidFlags are syncoid's flags: true wants a value.
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

// parse reads the words behind "syncoid", as Getopt::Long does: flags anywhere,
// one dash or two, shortened where that is unambiguous.
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
		typed, value, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(w, "-"), "-"), "=")
		name, err := flagOf(typed)
		if err != nil {
			return fault.Usagef("leave it out, or write it as syncoid --help does", "%s: %w", c.where, err)
		}
		if syncoidFlags()[name] && !given {
			if len(argv) == 0 {
				return fault.Usagef("", "%s: --%s wants a value", c.where, name)
			}
			value, argv = argv[0], argv[1:]
		}
		c.options = append(c.options, option{name, value})
	}
	if len(bare) != 2 {
		return fault.Usagef("write syncoid [FLAGS] SOURCE TARGET", "%s: syncoid wants a source and a target, and this has %d names: %q", c.where, len(bare), bare)
	}
	c.source, c.target = bare[0], bare[1]
	return nil
}

func flagOf(typed string) (string, error) {
	lower := strings.ToLower(typed)
	short := map[string]string{"r": "recursive", "c": "sshcipher", "o": "sshoption"}
	if long, ok := short[lower]; ok {
		return long, nil
	}
	flags := syncoidFlags()
	if _, ok := flags[lower]; ok {
		return lower, nil
	}
	var near []string
	for f := range flags {
		if lower != "" && strings.HasPrefix(f, lower) {
			near = append(near, f)
		}
	}
	if len(near) != 1 {
		return "", fmt.Errorf("syncoid has no flag --%s", typed)
	}
	return near[0], nil
}
