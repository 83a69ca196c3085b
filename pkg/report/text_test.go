package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/transport/connect"
)

func TestTextDryRun(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs, Now: newClock().Now})
	r := planned()
	text.Planned(r)
	require.NoError(t, text.Done(r, nil, SendResult(r)))
	require.Empty(t, errs.String())
	golden(t, "plan.txt", out.String())
}

func TestTextConflict(t *testing.T) {
	t.Parallel()
	r := diverged()
	c := r.Plan.Conflicts[0]
	refused := c.Err()

	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs, Now: newClock().Now})
	text.Planned(r)
	require.NoError(t, text.Done(r, refused, SendResult(r)))
	require.Empty(t, errs.String())
	golden(t, "conflict-dry-run.txt", out.String())

	out.Reset()
	r.DryRun = false
	text = NewText(Options{Stdout: &out, Stderr: &errs, Now: newClock().Now})
	text.Planned(r)
	require.NoError(t, text.Done(r, refused, SendResult(r)))
	Error(&errs, refused)
	require.Empty(t, out.String())
	golden(t, "conflict.txt", errs.String())
}

func TestTextRun(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		options Options
	}{
		{"run", Options{}},
		{"run-verbose", Options{Verbose: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			c := newClock()
			o := tt.options
			o.Stdout, o.Stderr, o.Now = &out, &errs, c.Now
			text := NewText(o)
			r := finished()
			replay(text, c, r)
			require.NoError(t, text.Done(r, nil, SendResult(r)))
			golden(t, tt.name+".txt", errs.String()+"--- stdout\n"+out.String())
		})
	}
}

func TestTextQuiet(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	c := newClock()
	text := NewText(Options{Stdout: &out, Stderr: &errs, Now: c.Now, Quiet: true, Size: func() (int, int) { return 80, 24 }})
	r := finished()
	replay(text, c, r)
	require.NoError(t, text.Done(r, nil, SendResult(r)))
	require.Empty(t, errs.String())
	require.Empty(t, out.String())

	text.Status()
	require.Equal(t, "no stream is running; received 2 streams, 4.0 GiB\n", errs.String(), "the limit was requested")
}

func TestTextFailure(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs, Now: newClock().Now})
	r := finished()
	require.NoError(t, text.Done(r, fault.Interrupt("the same command resumes", context.Canceled), SendResult(r)))
	require.Empty(t, out.String())
	require.Equal(t, "completed before the failure: 2 of 4 streams, 4.0 GiB sent\n", errs.String())

	require.NoError(t, text.Done(nil, errors.New("no report"), nil))
	require.NoError(t, text.Done(&send.Report{DryRun: true}, errors.New("no plan"), SendResult(&send.Report{DryRun: true})))
	require.Empty(t, out.String())
}

func TestTextUpToDate(t *testing.T) {
	t.Parallel()
	r := planned()
	r.DryRun, r.Outcome, r.Source = false, "up-to-date", "tank/home/bob"
	r.Plan.Datasets = r.Plan.Datasets[2:3]
	r.Plan.Notes, r.Findings = nil, nil
	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs})
	text.Planned(r)
	require.NoError(t, text.Done(r, nil, SendResult(r)))
	require.Empty(t, errs.String())
	require.Equal(t, "tank/home/bob is up to date on backup1:vault/ (@d)\n", out.String())
}

func TestTextStdoutFails(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left")
	text := NewText(Options{Stdout: failing{full}, Stderr: &bytes.Buffer{}})
	require.ErrorIs(t, text.Done(planned(), nil, SendResult(planned())), full)
	require.ErrorIs(t, NewJSON(Options{Stdout: failing{full}, Stderr: &bytes.Buffer{}}).Done(planned(), nil, nil), full)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestStatus(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	c := newClock()
	text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: &errs, Now: c.Now})
	r := finished()
	status := func() string {
		errs.Reset()
		text.Status()
		return errs.String()
	}
	require.Equal(t, "no stream is running; received 0 streams, 0 B\n", status())
	done := text.Activity("listing tank/home and backup1:vault")
	c.add(12 * time.Second)
	require.Equal(t, "listing tank/home and backup1:vault, 12 s\n", status())
	done()
	percent := 0
	done = text.ActivityState(func() string { return fmt.Sprintf("copying zxfer to beta, %d %%", percent) })
	c.add(2 * time.Second)
	percent = 50
	require.Equal(t, "copying zxfer to beta, 50 %, 2 s\n", status())
	done()
	text.Started(1, r.Plan.Datasets[0], 0)
	c.add(time.Second)
	text.Progress(1, connect.Progress{Bytes: 1 << 30, Total: 3 << 30, Rate: 1 << 30, LimitedBy: "read"})
	require.Equal(t, "tank/home@a: 1.0 GiB of 3.0 GiB (33 %), 1.0 GiB/s, ETA 2 s, limited by read\n", status())

	text = NewText(Options{Stdout: &bytes.Buffer{}, Stderr: &errs, Now: c.Now})
	r.Plan.Datasets = r.Plan.Datasets[:2]
	text.Planned(r)
	text.Started(1, r.Plan.Datasets[0], 0)
	c.add(time.Second)
	text.Progress(1, connect.Progress{Bytes: 1 << 30, Total: 3 << 30, Rate: 1 << 30, LimitedBy: "read"})
	require.Equal(t, "0 of 2 datasets done, 1.0 GiB of 9.0 GiB (11 %), 1.0 GiB/s, ETA 8 s: tank/home@a 33 %, limited by read\n", status())
	text.Started(2, r.Plan.Datasets[1], 0)
	require.Equal(t, "0 of 2 datasets done, 6.0 GiB of 9.0 GiB (66 %), 1.0 GiB/s, ETA 3 s: tank/home@a 33 %, tank/home/ann@d 83 %\n", status())
}

// TestTextOneLinePerMinute expects that without a terminal there is one line per minute, for streams
// and for earlier activities.
func TestTextOneLinePerMinute(t *testing.T) {
	t.Parallel()
	for _, often := range []bool{false, true} {
		var errs bytes.Buffer
		c := newClock()
		text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: &errs, Now: c.Now, Scheduled: often})
		wait := func(n int, do func(i int)) string {
			errs.Reset()
			for i := range n {
				c.add(time.Second)
				do(i)
			}
			return errs.String()
		}
		done := text.Activity("listing tank")
		require.Equal(t, "listing tank, 1 min 0 s\nlisting tank, 2 min 0 s\n", wait(130, func(int) { text.Tick() }))
		done()
		require.Empty(t, wait(130, func(int) { text.Tick() }), "no activity")
		errs.Reset()
		text.Started(1, planned().Plan.Datasets[0], 0)
		started := "tank/home@a -> vault/home: full @a, about 3.0 GiB\n"
		if often {
			started = ""
		}
		require.Equal(t, started, errs.String())
		require.Equal(t, "tank/home@a: 0 B of 3.0 GiB (0 %), 1.0 MiB/s, ETA 51 min 12 s\n"+
			"tank/home@a: 60 MiB of 3.0 GiB (1 %), 1.0 MiB/s, ETA 50 min 12 s\n",
			wait(62, func(i int) { text.Progress(1, connect.Progress{Bytes: uint64(i) << 20, Total: 3 << 30, Rate: 1 << 20}) }))
		errs.Reset()
		text.Finished(1, &send.StepResult{Bytes: 3 << 30, Wire: "tls"})
		require.Equal(t, often, errs.Len() == 0, "%s", errs.String())
	}
}

// TestTextIsCleaned expects that names and messages from other hosts do not control the terminal.
func TestTextIsCleaned(t *testing.T) {
	t.Parallel()
	evil := "x\x1b[2J\x07\u009b\u202ey"
	r := planned()
	r.Hosts[1].Name, r.Source = evil, evil
	r.Plan.Datasets[0].Source = evil
	r.Plan.Notes = []string{evil}
	r.Findings[1].Summary, r.Findings[1].Remedy = evil, evil
	r.Commands = []string{evil}
	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs})
	require.NoError(t, text.Done(r, nil, SendResult(r)))
	r.DryRun = false
	text.Planned(r)
	text.Log(evil)
	text.Started(1, r.Plan.Datasets[0], 0)
	text.Finished(1, &send.StepResult{Error: evil})
	Error(&errs, fault.Refusef(evil, "%s", evil))
	for _, s := range []string{out.String(), errs.String()} {
		require.Contains(t, s, "x?[2J???y")
		require.NotContains(t, s, "\x1b")
		require.NotContains(t, s, "\u202e")
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	a := fault.Refusef("do this\nor that", "tank/a: no")
	b := fmt.Errorf("tank/b: %w", fault.Failf("do this", "broke\nbadly"))
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"plain", errors.New("it broke"), "zxfer: it broke\n"},
		{"hint", a, "zxfer: tank/a: no\nhint: do this\nhint: or that\n"},
		{"lines", errors.New("one\ntwo\n"), "zxfer: one\n  two\n"},
		{"join", errors.Join(a, b), "zxfer: tank/a: no\nhint: do this\nhint: or that\nzxfer: tank/b: broke\n  badly\n"},
		{"classified join", fault.Interrupt("the same command resumes", errors.Join(a, b)),
			"zxfer: tank/a: no\nhint: do this\nhint: or that\nzxfer: tank/b: broke\n  badly\nhint: the same command resumes\n"},
		{"join of one keeps its hint", fault.Interrupt("again", errors.Join(errors.New("cut"))), "zxfer: cut\nhint: again\n"},
		{"nested", errors.Join(errors.Join(errors.New("a"), errors.New("b")), errors.New("c")), "zxfer: a\nzxfer: b\nzxfer: c\n"},
		{"wrapped join is one error", fmt.Errorf("verify: %w", errors.Join(errors.New("a"), errors.New("b"))), "zxfer: verify: a\n  b\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			Error(&b, tt.err)
			require.Equal(t, tt.want, b.String())
		})
	}
}

// TestReportersAreConcurrent expects that streams may report concurrently.
func TestReportersAreConcurrent(t *testing.T) {
	t.Parallel()
	size := func() (int, int) { return 60, 10 }
	for name, rep := range map[string]interface {
		send.Reporter
		Status()
	}{
		"text":     NewText(Options{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}),
		"terminal": NewText(Options{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}, Size: size}),
		"json":     NewJSON(Options{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := finished()
			done := make(chan struct{})
			for id := range 8 {
				go func() {
					defer func() { done <- struct{}{} }()
					rep.Started(id, r.Plan.Datasets[0], 0)
					for i := range 50 {
						rep.Progress(id, connect.Progress{Bytes: uint64(i), Elapsed: time.Second})
						rep.Log("x")
						rep.Status()
					}
					rep.Finished(id, &send.StepResult{})
				}()
			}
			for range 8 {
				<-done
			}
		})
	}
}
