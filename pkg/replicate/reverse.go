package replicate

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

const (
	// reverseSuffix is appended to the name of a job for the name of its reverse.
	reverseSuffix = "-reverse"
	// reverseTarget is the name of the target of a reverse job.
	reverseTarget = "former-source"
)

// ReverseName returns the name of the reverse of a job.
//
// The reverse of a reverse job has the name of the first job.
func ReverseName(job string) string {
	if first, ok := strings.CutSuffix(job, reverseSuffix); ok && first != "" {
		return first
	}
	return job + reverseSuffix
}

// Reverse returns the job that replicates from a copy back to the former source. Each side keeps its
// own retention, and the snapshots keep their names, so that neither side loses history. The result
// has one target. Keys that can destroy data (mirror, on_divergence), drills, and the selection by a
// property, which copies may lack, are missing. It has the job's table notify, which may contain a secret.
func (j *Job) Reverse(t *Target, source, to endpoint.Endpoint) (*Job, error) {
	if !strings.Contains(to.Name, "/") {
		return nil, fault.Usagef("replicate a dataset below it instead",
			"job %q: its source is the root dataset of a pool, which cannot receive a copy", j.Name)
	}
	if from := j.Snapshots.ReceivedFrom; from != "" {
		return nil, fault.Refusef("if nothing sends to the source any more, replace snapshots.received_from with snapshots.take",
			"job %q has no reverse job: %s sends its source, so both would send to it", j.Name, from)
	}
	transfer := *j.TransferTo(t)
	transfer.Decrypt = false
	switch transfer.Dial {
	case "source":
		transfer.Dial = "target"
	case "target":
		transfer.Dial = "source"
	}
	r := &Job{
		Name: ReverseName(j.Name), Source: source.String(), Recursive: j.Recursive, Selection: j.Selection,
		MountBelow: j.MountBelow, Schedule: j.Schedule, Jitter: j.Jitter, Grace: j.Grace, User: j.User,
		Snapshots: j.Snapshots, Retention: t.Retention, PruneLimit: j.PruneLimit,
		Parallel: j.Parallel, Retries: j.Retries, Transfer: transfer, Bookmarks: j.Bookmarks, Holds: j.Holds,
		Freeze: j.Freeze, Before: j.Before, After: j.After, Alert: j.Alert,
	}
	switch j.Holds {
	case SourceSide:
		r.Holds = "target"
	case "target":
		r.Holds = SourceSide
	}
	r.Notify = j.ownNotify.forReverse(j.Name)
	r.ownNotify = r.Notify
	r.Property = ""
	r.Snapshots.Take = strings.ReplaceAll(j.Snapshots.Take, "{job}", j.Name)
	r.Snapshots.SnapshotLimits = j.SnapshotLimitsOf(t)
	back := Target{Name: reverseTarget, To: to.String(), Selection: t.Selection, Retention: j.Retention, Properties: Properties{Carry: t.Properties.Carry, Exclude: t.Properties.Exclude}}
	back.Property = ""
	back.Snapshots.Only = t.Snapshots.Only
	if !reflect.DeepEqual(j.Transfer, *j.TransferTo(t)) {
		own := j.Transfer
		own.Decrypt, own.Dial = false, transfer.Dial
		back.Transfer = &own
	}
	r.Targets = []Target{back}
	f := File{Jobs: []Job{*r}}
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("the reverse job is not valid: %w", err)
	}
	return r, nil
}

// FindReverse returns the job that replicates from a copy to the former source, or nil. It compares
// addresses as written.
func (f *File) FindReverse(source, to endpoint.Endpoint) *Job {
	for i := range f.Jobs {
		j := &f.Jobs[i]
		from, err := endpoint.Parse(j.Source)
		if err != nil || from != source {
			continue
		}
		for k := range j.Targets {
			at, err := endpoint.Parse(j.Targets[k].To)
			if err == nil && at.Host == to.Host && j.Targets[k].CopyOf(from.Name, from.Name) == to.Name {
				return j
			}
		}
	}
	return nil
}

// PrintedText returns Text without notify.ping, which is secret. A comment names the job that has it.
func (j *Job) PrintedText() string {
	if j.Notify == nil || j.Notify.Ping == "" {
		return j.Text()
	}
	r, n := *j, *j.Notify
	n.Ping = ""
	if r.Notify = &n; reflect.DeepEqual(n, Notify{}) {
		r.Notify = nil
	}
	return r.Text() + "# [job.notify]: ping is secret. Copy it from job " + ReverseName(j.Name) + ".\n"
}

// Text returns the job as a [[job]] table of a job file. It contains notify.ping, which is secret.
func (j *Job) Text() string {
	text, err := toml.Marshal(struct {
		Jobs []Job `toml:"job"`
	}{[]Job{*j}})
	if err != nil {
		panic("cannot write a job: " + err.Error()) // cannot happen: every test encodes these types
	}
	return string(text)
}

// RoleEdit changes the roles of jobs in a job file.
type RoleEdit struct {
	Standby string // job to mark as standby
	Active  string // standby job to activate, "" = none
	Add     *Job   // job to append, nil = none
}

// standbyLine matches a line that only sets standby.
var standbyLine = regexp.MustCompile(`^\s*standby\s*=\s*(true|false)\s*(#.*)?\r?\n?$`)

// Apply returns the text of a job file after the change. It changes single lines and returns the
// text unchanged if nothing is to be done. It refuses (fault.Refused) if the file is shared between
// hosts, uses templates, or has its jobs in an inline array. The result is valid, and no other job
// changes.
func (e *RoleEdit) Apply(name string, text []byte) ([]byte, error) {
	inv, err := Read(name, text)
	if err != nil {
		return nil, err
	}
	if inv.jobs != nil {
		return nil, e.manual(fault.Refusef("", "%s is shared between hosts, or uses templates or {host}", name))
	}
	before, err := inv.For("")
	if err == nil && len(inv.lines["job"]) != len(before.Jobs) {
		err = fault.Refusef("", "%s has its jobs in an inline array", name)
	}
	if err != nil {
		return nil, e.manual(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	var places []int
	for i := range before.Jobs {
		if n := before.Jobs[i].Name; n == e.Standby || n == e.Active {
			places = append(places, i)
		}
	}
	for _, i := range slices.Backward(places) { // the last one first, because lines move
		if lines, err = setStandby(lines, inv, i, before.Jobs[i].Name == e.Standby, before.Jobs[i].Standby); err != nil {
			return nil, e.manual(fmt.Errorf("%s: %w", name, err))
		}
	}
	out := bytes.Join(lines, nil)
	if e.Add != nil {
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out = append(out, '\n')
		}
		out = append(out, "\n"+e.Add.Text()...)
	}
	if err := e.check(name, before, out); err != nil {
		return nil, e.manual(err)
	}
	return out, nil
}

// setStandby sets or clears the key standby of job i.
func setStandby(lines [][]byte, inv *Inventory, i int, want, is bool) ([][]byte, error) {
	at := inv.keys[i]["standby"]
	switch {
	case want == is:
		return lines, nil
	case at != 0 && !standbyLine.Match(lines[at-1]):
		return nil, fault.Refusef("", "line %d does not only set standby", at)
	case at != 0 && !want:
		return slices.Delete(slices.Clone(lines), at-1, at), nil
	case at != 0:
		lines = slices.Clone(lines)
		lines[at-1] = bytes.Replace(lines[at-1], []byte("false"), []byte("true"), 1)
		return lines, nil
	}
	header := inv.lines["job"][i] // from 1: the index of the next line
	line := "standby = true\n"
	if bytes.HasSuffix(lines[header-1], []byte("\r\n")) {
		line = "standby = true\r\n"
	} else if !bytes.HasSuffix(lines[header-1], []byte("\n")) {
		line = "\n" + line
	}
	return slices.Insert(slices.Clone(lines), header, []byte(line)), nil
}

// check requires that the new text has exactly the changes of e.
func (e *RoleEdit) check(name string, before *File, text []byte) error {
	after, err := Parse(name, text)
	if err != nil {
		return err
	}
	want := slices.Clone(before.Jobs)
	for i := range want {
		switch want[i].Name {
		case e.Standby:
			want[i].Standby = true
		case e.Active:
			want[i].Standby = false
		}
	}
	if e.Add != nil {
		want = append(want, *e.Add)
	}
	same := func(a, b Job) bool {
		if e.Add != nil && a.Name == e.Add.Name { // the file's table notify applies to it
			a.Notify, b.Notify = nil, nil
		}
		return a.Text() == b.Text()
	}
	if !slices.EqualFunc(want, after.Jobs, same) {
		return fault.Refusef("", "%s cannot be changed without changing other jobs", name)
	}
	return nil
}

// manual adds the change to make by hand to an error, as a hint.
func (e *RoleEdit) manual(err error) error {
	hint := "write standby = true below the [[job]] of " + e.Standby
	if e.Active != "" {
		hint += "\ndelete standby = true from the [[job]] of " + e.Active
	}
	if e.Add != nil {
		hint += "\nappend the job " + e.Add.Name + " as printed, then run the same command again"
	}
	return fault.Refusef(cmp.Or(fault.HintOf(err), hint), "%w", err)
}
