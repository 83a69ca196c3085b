// Package freeze defines requests to freeze applications while snapshots are taken, and their
// results.
//
// Its nouns:
//
//	Spec         an application and how to reach it
//	Application  a Spec and the snapshots it belongs to
//	Request      the snapshots of one transaction and the applications to freeze
//	Outcome      the result of freezing one application
//	Result       the outcomes of a Request
//
// The package touches no system. It validates what comes from a job file or another host. Package
// guard freezes and thaws.
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

// Kinds of applications.
const (
	PostgreSQL = "postgresql"  // a checkpoint, which shortens the recovery
	MySQL      = "mysql"       // MySQL, MariaDB: a lock that one session holds
	GuestAgent = "guest-agent" // the filesystems of a virtual machine, by qemu-guest-agent
	Command    = "command"     // any application, by two commands
)

// Kinds returns all kinds.
func Kinds() []string { return []string{PostgreSQL, MySQL, GuestAgent, Command} }

// Property of a snapshot lists, separated by commas, the applications that were frozen while it
// was taken. zxfer sets it once that is verified.
const Property = "zxfer:consistent"

// Spec is one application, and how to reach it from the host of its datasets. It has no secrets:
// Credentials names a file with the password.
type Spec struct {
	Kind string `toml:"kind" json:"kind"`
	// Name identifies the application in records and in Property; "" = Kind.
	Name string `toml:"name,omitempty" json:"name,omitempty"`
	// Host is where the database listens: a name, an address or, for PostgreSQL, the directory of
	// its socket; "" = the client's default.
	Host string `toml:"host,omitempty" json:"host,omitempty"`
	Port int    `toml:"port,omitempty" json:"port,omitempty"`
	// Socket is the path of the MySQL server's or the guest agent's socket.
	Socket   string `toml:"socket,omitempty" json:"socket,omitempty"`
	User     string `toml:"user,omitempty" json:"user,omitempty"`         // database account
	Database string `toml:"database,omitempty" json:"database,omitempty"` // for PostgreSQL; "" = postgres
	// Credentials is a file: for PostgreSQL a password file (.pgpass), for MySQL an option file
	// (.my.cnf).
	Credentials string `toml:"credentials,omitempty" json:"credentials,omitempty"`
	// RunAs is the account for the client or the commands; "" = zxfer's.
	RunAs string `toml:"run_as,omitempty" json:"run_as,omitempty"`
	// Freeze and Thaw are argument lists. No shell parses them.
	Freeze []string `toml:"freeze,omitempty" json:"freeze,omitempty"`
	Thaw   []string `toml:"thaw,omitempty" json:"thaw,omitempty"`
	// Timeout limits the time from the start of the freeze to the thaw.
	Timeout time.Duration `toml:"-" json:"within"`
}

// Label returns Name or Kind.
func (s *Spec) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Kind
}

// Default and maximum of Timeout.
const (
	DefaultTimeout = 30 * time.Second
	MaxTimeout     = 10 * time.Minute
)

// maxSpecs limits the applications of one transaction.
const maxSpecs = 64

// Check validates the Spec.
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
	set := s.setKeys()
	for _, key := range []string{"host", "port", "socket", "user", "database", "credentials", "run_as", "freeze", "thaw"} {
		if set[key] && !slices.Contains(its, key) {
			bad("%s has no effect with kind = %q, which has %s", key, s.Kind, strings.Join(its, ", "))
		}
	}
	if s.Name != "" && !isPlainName(s.Name) {
		bad(`name %q: write letters, digits, "-" and "_", at most 48`, s.Name)
	}
	for key, text := range map[string]string{"host": s.Host, "user": s.User, "database": s.Database, "run_as": s.RunAs} {
		if strings.HasPrefix(text, "-") || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 255 {
			bad("%s = %q is not valid", key, text)
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
		bad("socket is missing: write the path of the virtual machine's guest agent socket")
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
	if s.Timeout <= 0 || s.Timeout > MaxTimeout {
		bad("timeout = %s: write up to %s", s.Timeout, MaxTimeout)
	}
	return errors.Join(errs...)
}

// setKeys reports which optional job-file keys are set.
func (s *Spec) setKeys() map[string]bool {
	return map[string]bool{
		"host": s.Host != "", "port": s.Port != 0, "socket": s.Socket != "", "user": s.User != "", "database": s.Database != "",
		"credentials": s.Credentials != "", "run_as": s.RunAs != "", "freeze": len(s.Freeze) > 0, "thaw": len(s.Thaw) > 0,
	}
}

func isPlainName(s string) bool {
	return len(s) <= 48 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}

// Application is an application to freeze for some snapshots of one transaction.
type Application struct {
	Spec
	Datasets []string `json:"datasets"` // the application's datasets
	// Required prevents the snapshots if the application cannot be frozen.
	Required bool `json:"required"`
}

// Request lists snapshots to take in one transaction while applications are frozen. The
// applications are frozen one after the other and thawed together.
type Request struct {
	Job          string        `json:"job"`
	Snapshots    []string      `json:"snapshots"`
	Applications []Application `json:"wanted"`
}

// Check validates the Request.
func (r *Request) Check() error {
	if len(r.Applications) == 0 || len(r.Applications) > maxSpecs {
		return fmt.Errorf("%d applications to freeze: must be 1 to %d", len(r.Applications), maxSpecs)
	}
	if !isPlainName(r.Job) {
		return fmt.Errorf("%q is not the name of a job", r.Job)
	}
	taken := map[string]bool{}
	for _, s := range r.Snapshots {
		dataset, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		taken[dataset] = true
	}
	for i := range r.Applications {
		w := &r.Applications[i]
		if err := w.Check(); err != nil {
			return fmt.Errorf("%s: %w", w.Label(), err)
		}
		for _, d := range w.Datasets {
			if !taken[d] {
				return fmt.Errorf("%s: the job takes no snapshot of %q", w.Label(), d)
			}
		}
	}
	return nil
}

// Outcome is the result of freezing one application.
type Outcome struct {
	// Error is why the freeze is not verified; "" if it is.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// ThawFailed reports that the thaw failed: the application may still be frozen.
	ThawFailed bool `json:"left,omitempty"`
	// Seconds is how long it was frozen.
	Seconds float64 `json:"seconds,omitempty"`
	// Position is the application's log position during the freeze, if known.
	Position string `json:"position,omitempty"`
}

// Result is the result of a Request.
type Result struct {
	Outcomes []Outcome `json:"outcomes"` // in the order of Request.Applications
	// Stopped reports that a required application could not be frozen and no snapshot was taken.
	Stopped bool `json:"stopped,omitempty"`
	// MarkError is why Property could not be set, or "".
	MarkError string `json:"unmarked,omitempty"`
}

// maxText limits the text of an application, in bytes.
const maxText = 2048

// CheckResult validates a result against its request.
func CheckResult(q Request, r *Result) error {
	if len(r.Outcomes) != len(q.Applications) {
		return fmt.Errorf("got %d results, expected %d", len(r.Outcomes), len(q.Applications))
	}
	texts := []string{r.MarkError}
	for _, o := range r.Outcomes {
		if !(o.Seconds >= 0 && o.Seconds < 86400) {
			return fmt.Errorf("invalid freeze time: %v seconds", o.Seconds)
		}
		texts = append(texts, o.Error, o.Hint, o.Position)
	}
	for _, text := range texts {
		if text != Clean(text) {
			return errors.New("its message is too long or contains control characters")
		}
	}
	return nil
}

// Clean makes the output of an application safe to store and show.
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

// Marks returns the values of Property and, for each, the snapshots that get it: those for which
// all wanted applications were frozen.
func Marks(q Request, outcomes []Outcome) map[string][]string {
	out := map[string][]string{}
	for _, full := range q.Snapshots {
		dataset, _, _ := strings.Cut(full, "@")
		var names []string
		proved := true
		for i, w := range q.Applications {
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
