package html

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

//go:embed page.html page.css
var files embed.FS

// About describes the origin of a page.
type About struct {
	Version string
	Host    string // host where the command ran
	Made    time.Time
}

// host returns the name of a host, and a.Host for "local".
func (a About) host(label string) string {
	if label == "local" {
		label = a.Host
	}
	return name(label)
}

// page is the input of the template. Empty parts are omitted.
type page struct {
	About
	Verb     string
	Title    []string // joined by arrows
	Times    string
	Outcome  badge
	Figures  []figure
	Limit    *limit // the bottleneck and its meaning
	Advice   string // the recommended change
	Errors   []problem
	Course   *course
	DataPath *dataPath
	Bars     *bars
	Jobs     []jobTable
	Notes    []string
	Tables   []table
	Said     *messageLog
	Commands
}

// badge is a word colored by its meaning.
type badge struct{ Text, Class string }

// figure is one number at the top of the page.
type figure struct{ Label, Value, Note string }

// table is rows of text.
type table struct {
	Title   string
	Columns []string
	Rows    [][]cell
	More    string // what is omitted
	Closed  bool   // collapsed
}

// cell is text in a table.
type cell struct {
	Text  string
	Note  string // below the text
	Class string
}

// Commands are lines to copy.
type Commands struct {
	CommandsTitle string
	Lines         []string
	MoreLines     string
}

// messageLog holds the log messages.
type messageLog struct {
	Lines   []messageLine
	Dropped int
}

type messageLine struct{ At, Text, Class string }

// Limits of the lists on a page.
const (
	maxRows     = 200
	maxCells    = 2000 // datasets times targets
	maxCommands = 60
	maxName     = 160 // characters of a name
	maxText     = 600 // characters of a message
)

// render returns the HTML of a page.
func render(p *page) ([]byte, error) {
	t, err := template.ParseFS(files, "page.html", "page.css")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, "page.html", p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// name formats an untrusted name on one line.
func name(s string) string { return clip(report.Line(s), maxName) }

// clip removes the middle of a long text.
func clip(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most/2]) + " … " + string(r[len(r)-most/2+3:])
}

// problem is an error and its hints.
type problem struct {
	Text  string
	Hints []string
}

// failures returns the errors of a command as problems.
func failures(errs ...error) (out []problem) {
	for _, err := range errs {
		if err != nil && len(out) < maxRows {
			out = append(out, problems(err.Error(), fault.HintOf(err))...)
		}
	}
	return out
}

// problems returns the problem in a message, or nil if it is empty.
func problems(message, hint string) []problem {
	if message == "" {
		return nil
	}
	return []problem{{text(message), hints(hint)}}
}

// text formats an untrusted message.
func text(s string) string { return clip(report.Line(s), maxText) }

// hints returns the lines of a hint.
func hints(s string) (out []string) {
	for l := range strings.Lines(s) {
		if l = text(l); l != "" && len(out) < 20 {
			out = append(out, l)
		}
	}
	return out
}

// add adds a table unless it is empty.
func (p *page) add(t table) {
	if len(t.Rows) > 0 {
		p.Tables = append(p.Tables, *t.bound())
	}
}

// bound limits the rows of a table.
func (t *table) bound() *table {
	if more := len(t.Rows) - maxRows; more > 0 {
		t.Rows, t.More = t.Rows[:maxRows], fmt.Sprintf("and %d more", more)
	}
	return t
}

// commands limits and cleans command lines.
func commands(title string, lines []string) Commands {
	c := Commands{CommandsTitle: title}
	for i, l := range lines {
		if i == maxCommands {
			c.MoreLines = fmt.Sprintf("and %d more", len(lines)-i)
			break
		}
		c.Lines = append(c.Lines, text(l))
	}
	return c
}

// outcomeBadge shows an outcome.
func outcomeBadge(outcome string) badge {
	switch outcome {
	case "done", "equal", "up-to-date":
		return badge{strings.ReplaceAll(outcome, "-", " "), "good"}
	case "planned":
		return badge{"planned, nothing changed", "plain"}
	case "interrupted":
		return badge{outcome, "warn"}
	case "":
		return badge{}
	}
	return badge{name(outcome), "bad"}
}

// times formats when a course started and ended.
func times(c *history.Recording, made time.Time) string {
	if c.Began.IsZero() {
		return stamp(made)
	}
	began := c.Began.In(made.Location())
	end := began.Add(c.Length)
	if began.Format(time.DateOnly) == end.Format(time.DateOnly) {
		return began.Format("2006-01-02 15:04:05") + " to " + end.Format("15:04:05 MST")
	}
	return stamp(began) + " to " + stamp(end)
}

// stamp formats a time in its own zone.
func stamp(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") }

// rate formats bytes per second, or returns "" if it is unknown.
func rate(bytes, seconds float64) string {
	if !(seconds > 0) || !(bytes > 0) || bytes/seconds > 1<<44 {
		return ""
	}
	return size.Rate(uint64(bytes / seconds))
}

// messagesOf returns the log messages by time, or nil.
func messagesOf(c *history.Recording, made time.Time) *messageLog {
	s := &messageLog{Dropped: c.Messages.Dropped}
	for _, m := range c.Messages.All() {
		s.Lines = append(s.Lines, messageLine{At: m.At.In(made.Location()).Format("15:04:05"), Text: text(m.Text)})
	}
	if len(s.Lines) == 0 {
		return nil
	}
	return s
}
