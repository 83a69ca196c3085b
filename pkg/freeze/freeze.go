// Package freeze says how an application is held still while a snapshot is taken, and
// what came of it. Package guard does it.
//
// It touches no system: it only judges what was written in a job file, or came from
// another host.
package freeze

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"zxfer/pkg/zfs"
)

// The kinds of applications.
const (
	PostgreSQL = "postgresql"  // a checkpoint: what is left to recover is short
	MySQL      = "mysql"       // MySQL, MariaDB: a lock that one session holds
	GuestAgent = "guest-agent" // the filesystems of a virtual machine, by qemu-guest-agent
	Command    = "command"     // anything, by two commands
)

// Kinds are those that there are.
func Kinds() []string { return []string{PostgreSQL, MySQL, GuestAgent, Command} }

// Property of a snapshot names all that was held still while it was taken, with
// commas between. It is set once that is proved, and by no one else.
const Property = "zxfer:consistent"

// Spec is one application, and how it is reached from the host that has its datasets.
// No field is a secret: passwords are in the file that Credentials names.
type Spec struct {
	Kind string `toml:"kind" json:"kind"`
	// Name tells it from others in records and in Property; "" = Kind.
	Name string `toml:"name,omitempty" json:"name,omitempty"`
	// Host is where the database listens: a name, an address or, of PostgreSQL, the
	// directory of its socket; "" = what the client takes by itself.
	Host string `toml:"host,omitempty" json:"host,omitempty"`
	Port int    `toml:"port,omitempty" json:"port,omitempty"`
	// Socket is that of a MySQL server, or of the guest agent.
	Socket   string `toml:"socket,omitempty" json:"socket,omitempty"`
	User     string `toml:"user,omitempty" json:"user,omitempty"`         // of the database
	Database string `toml:"database,omitempty" json:"database,omitempty"` // of PostgreSQL; "" = postgres
	// Credentials is a file: of PostgreSQL a password file (.pgpass), of MySQL an
	// option file (.my.cnf).
	Credentials string `toml:"credentials,omitempty" json:"credentials,omitempty"`
	// RunAs is the account that the client, or the commands, run as; "" = zxfer's.
	RunAs string `toml:"run_as,omitempty" json:"run_as,omitempty"`
	// Freeze and Thaw are argument lists, which no shell reads.
	Freeze []string `toml:"freeze,omitempty" json:"freeze,omitempty"`
	Thaw   []string `toml:"thaw,omitempty" json:"thaw,omitempty"`
	// Within bounds how long it is held still, from the begin of its freezing.
	Within time.Duration `toml:"-" json:"within"`
}

// Label is how it is called.
func (s *Spec) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Kind
}

// Bounds of Within, and what it is where nothing is said.
const (
	DefaultWithin = 30 * time.Second
	MaxWithin     = 10 * time.Minute
)

// maxSpecs bounds what one transaction waits for.
const maxSpecs = 64

// keys are those that a kind has beside kind, name, run_as and the job's own.
func (s *Spec) keys() map[string]bool {
	return map[string]bool{
		"host": s.Host != "", "port": s.Port != 0, "socket": s.Socket != "", "user": s.User != "", "database": s.Database != "",
		"credentials": s.Credentials != "", "run_as": s.RunAs != "", "freeze": len(s.Freeze) > 0, "thaw": len(s.Thaw) > 0,
	}
}

// Check refuses what is none.
func (s *Spec) Check() error {
	has := map[string][]string{
		PostgreSQL: {"host", "port", "user", "database", "credentials", "run_as"},
		MySQL:      {"host", "port", "socket", "user", "credentials", "run_as"},
		GuestAgent: {"socket"},
		Command:    {"freeze", "thaw", "run_as"},
	}
	its, known := has[s.Kind]
	if s.Kind == "" {
		return fmt.Errorf("kind is missing; write one of %s", strings.Join(Kinds(), ", "))
	}
	if !known {
		return fmt.Errorf("kind = %q: write one of %s", s.Kind, strings.Join(Kinds(), ", "))
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	set := s.keys()
	for _, key := range []string{"host", "port", "socket", "user", "database", "credentials", "run_as", "freeze", "thaw"} {
		if set[key] && !slices.Contains(its, key) {
			bad("%s has no effect with kind = %q, which has %s", key, s.Kind, strings.Join(its, ", "))
		}
	}
	if s.Name != "" && !plainName(s.Name) {
		bad(`name %q: write letters, digits, "-" and "_", at most 48`, s.Name)
	}
	for key, text := range map[string]string{"host": s.Host, "user": s.User, "database": s.Database, "run_as": s.RunAs} {
		if strings.HasPrefix(text, "-") || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 255 {
			bad("%s = %q is none", key, text)
		}
	}
	for key, file := range map[string]string{"socket": s.Socket, "credentials": s.Credentials} {
		if file != "" && (!path.IsAbs(file) || strings.ContainsFunc(file, unicode.IsControl)) {
			bad("%s = %q is not an absolute path", key, file)
		}
	}
	if s.Port < 0 || s.Port > 65535 {
		bad("port = %d: write 1 to 65535", s.Port)
	}
	if s.Kind == GuestAgent && s.Socket == "" {
		bad("socket is missing: the one of the virtual machine's guest agent")
	}
	if s.Kind == Command {
		for key, argv := range map[string][]string{"freeze": s.Freeze, "thaw": s.Thaw} {
			switch {
			case len(argv) == 0:
				bad(`%s is missing; write ["/path/of/command", "argument"]`, key)
			case !path.IsAbs(argv[0]) || strings.Contains(strings.Join(argv, ""), "\x00"):
				bad("%s: %q is not an absolute path", key, argv[0])
			}
		}
	}
	if s.Within <= 0 || s.Within > MaxWithin {
		bad("timeout = %s: write up to %s", s.Within, MaxWithin)
	}
	return errors.Join(errs...)
}

func plainName(s string) bool {
	return len(s) <= 48 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}

// Wanted is what is to be held still for some of the snapshots of one transaction.
type Wanted struct {
	Spec
	Datasets []string `json:"datasets"` // that are its own, of those
	// Required has nothing be taken where it cannot be held still.
	Required bool `json:"required"`
}

// Request holds snapshots to take in one transaction while applications are frozen. They
// are frozen one after the other, and thawed together.
type Request struct {
	Job       string   `json:"job"`
	Snapshots []string `json:"snapshots"`
	Wanted    []Wanted `json:"wanted"`
}

// Check refuses what is none.
func (r *Request) Check() error {
	if len(r.Wanted) == 0 || len(r.Wanted) > maxSpecs {
		return fmt.Errorf("%d applications are to be held still; it can be 1 to %d", len(r.Wanted), maxSpecs)
	}
	if !plainName(r.Job) {
		return fmt.Errorf("%q is no job", r.Job)
	}
	taken := map[string]bool{}
	for _, s := range r.Snapshots {
		dataset, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		taken[dataset] = true
	}
	for i := range r.Wanted {
		w := &r.Wanted[i]
		if err := w.Check(); err != nil {
			return fmt.Errorf("%s: %w", w.Label(), err)
		}
		for _, d := range w.Datasets {
			if !taken[d] {
				return fmt.Errorf("%s: no snapshot of %q is to be taken", w.Label(), d)
			}
		}
	}
	return nil
}

// Outcome is what came of one that was wanted.
type Outcome struct {
	// Error is why it is not proved that it stood still; "" = it is.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// Left tells that it could not be thawed: it may stand still now.
	Left bool `json:"left,omitempty"`
	// Seconds are how long it stood still.
	Seconds float64 `json:"seconds,omitempty"`
	// Position is where in its log of changes the application stood, where it tells.
	Position string `json:"position,omitempty"`
}

// Result is what came of a Request.
type Result struct {
	Outcomes []Outcome `json:"outcomes"` // as they were wanted
	// Stopped tells that something that is required could not be held still: no snapshot
	// was taken.
	Stopped bool `json:"stopped,omitempty"`
	// Unmarked is why Property could not be set, "" where it was.
	Unmarked string `json:"unmarked,omitempty"`
}

// maxText bounds what an application may have told.
const maxText = 2048

// CheckResult refuses an answer to something else than was asked.
func CheckResult(q Request, r *Result) error {
	if len(r.Outcomes) != len(q.Wanted) {
		return fmt.Errorf("%d outcomes of %d that were wanted", len(r.Outcomes), len(q.Wanted))
	}
	texts := []string{r.Unmarked}
	for _, o := range r.Outcomes {
		if !(o.Seconds >= 0 && o.Seconds < 86400) {
			return fmt.Errorf("something stood still for %v seconds", o.Seconds)
		}
		texts = append(texts, o.Error, o.Hint, o.Position)
	}
	for _, text := range texts {
		if text != Clean(text) {
			return errors.New("what it tells is too long, or holds control characters")
		}
	}
	return nil
}

// Clean makes what an application said fit to be kept and shown.
func Clean(text string) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?")))
	if len(text) > maxText {
		text = strings.TrimSpace(strings.ToValidUTF8(text[len(text)-maxText:], ""))
	}
	return text
}

// Marks are the values of Property, and the snapshots that have each: those of which
// all that was wanted for them stood still.
func Marks(q Request, outcomes []Outcome) map[string][]string {
	out := map[string][]string{}
	for _, full := range q.Snapshots {
		dataset, _, _ := strings.Cut(full, "@")
		var names []string
		proved := true
		for i, w := range q.Wanted {
			if slices.Contains(w.Datasets, dataset) {
				names, proved = append(names, w.Label()), proved && outcomes[i].Error == ""
			}
		}
		if proved && len(names) > 0 {
			value := strings.Join(names, ",")
			out[value] = append(out[value], full)
		}
	}
	return out
}
