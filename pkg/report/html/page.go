// Package page shows a command, or how jobs stand, as one page of HTML: the answer
// first, then the rate over time, then details.
//
// A page is a file of its own: it fetches nothing, runs nothing, and a policy in
// it forbids both, so that nothing which a host says can become more than text.
// It follows the reader's choice of light or dark, and prints. What it holds is
// bounded: of long lists it shows what matters and says what it leaves out.
//
// Everything here is a function of values; who writes the page, and when, is the
// caller's matter.
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

// About is what a page says of its making.
type About struct {
	Version string
	Host    string // where the command was given
	Made    time.Time
}

// host is a host by its name, this one too.
func (a About) host(label string) string {
	if label == "local" {
		label = a.Host
	}
	return name(label)
}

// page is what the template shows. Parts that are empty are left out.
type page struct {
	About
	Verb    string
	Title   []string // joined by arrows
	Times   string
	Outcome badge
	Figures []figure
	Limit   *limit // with the meaning of what limited it
	Advice  string // the one thing to change
	Errors  []problem
	Course  *course
	Way     *way
	Bars    *bars
	Jobs    []jobTable
	Notes   []string
	Tables  []table
	Said    *said
	Commands
}

// badge is a word that is coloured by what it means.
type badge struct{ Text, Class string }

// figure is one number, the first thing to see.
type figure struct{ Label, Value, Note string }

// table is rows of text.
type table struct {
	Title   string
	Columns []string
	Rows    [][]cell
	More    string // what is left out
	Closed  bool   // shown when it is asked for
}

// cell is a text, or some, in a table.
type cell struct {
	Text  string
	Note  string // below it
	Class string
}

// Commands are lines to copy.
type Commands struct {
	CommandsTitle string
	Lines         []string
	MoreLines     string
}

// said is what was told on the way.
type said struct {
	Lines   []saidLine
	Dropped int
}

type saidLine struct{ At, Text, Class string }

// The most of each list that a page shows.
const (
	maxRows     = 200
	maxCells    = 2000 // of datasets by targets
	maxCommands = 60
	maxName     = 160 // characters of a name
	maxText     = 600 // characters of a message
)

// render makes HTML of a page.
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

// name is what another host calls something, on one line.
func name(s string) string { return clip(report.Line(s), maxName) }

// text is a message of anywhere.
func text(s string) string { return clip(report.Line(s), maxText) }

// clip leaves out the middle of what is too long.
func clip(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most/2]) + " … " + string(r[len(r)-most/2+3:])
}

// problem is why something is not well.
type problem struct {
	Text  string
	Hints []string
}

// problems is the one that a message tells of, if it does.
func problems(message, hint string) []problem {
	if message == "" {
		return nil
	}
	return []problem{{text(message), hints(hint)}}
}

// failures are what a command ended with.
func failures(errs ...error) (out []problem) {
	for _, err := range errs {
		if err != nil && len(out) < maxRows {
			out = append(out, problems(err.Error(), fault.HintOf(err))...)
		}
	}
	return out
}

// hints are the lines of a hint.
func hints(s string) (out []string) {
	for l := range strings.Lines(s) {
		if l = text(l); l != "" && len(out) < 20 {
			out = append(out, l)
		}
	}
	return out
}

// rows bounds the rows of a table.
func (t *table) bound() *table {
	if more := len(t.Rows) - maxRows; more > 0 {
		t.Rows, t.More = t.Rows[:maxRows], fmt.Sprintf("and %d more", more)
	}
	return t
}

// add adds a table that has rows.
func (p *page) add(t table) {
	if len(t.Rows) > 0 {
		p.Tables = append(p.Tables, *t.bound())
	}
}

// commands bounds and cleans command lines.
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

// outcomes are the words for what became of something, and how they look.
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

// stamp is a time of day, in the zone of the command.
func stamp(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") }

// times says when something began and how long it took.
func times(c *history.Course, made time.Time) string {
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

// rate is bytes per second, "" where there is none to tell.
func rate(bytes, seconds float64) string {
	if !(seconds > 0) || !(bytes > 0) || bytes/seconds > 1<<44 {
		return ""
	}
	return size.Rate(uint64(bytes / seconds))
}

// saidOf shows what was told, and what happened to streams, by time.
func saidOf(c *history.Course, made time.Time) *said {
	s := &said{Dropped: c.Messages.Dropped}
	for _, m := range c.Messages.All() {
		s.Lines = append(s.Lines, saidLine{At: m.At.In(made.Location()).Format("15:04:05"), Text: text(m.Text)})
	}
	if len(s.Lines) == 0 {
		return nil
	}
	return s
}
