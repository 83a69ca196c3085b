package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/unit"
	"zxfer/pkg/report"
)

// pauseOptions holds the flags of replicate pause and resume.
type pauseOptions struct {
	replicateOptions
	all, transfersOnly   bool
	lasts, until, reason string
}

func newReplicatePause(a *app) *cobra.Command {
	o := &pauseOptions{}
	cmd := &cobra.Command{
		Use:   "pause [FLAGS] JOB ...",
		Short: "Pause jobs, or only their transfers",
		Long: `Pause jobs until a time, or until resume. Scheduled runs do nothing, or with
--transfers-only take snapshots and prune the source. A pause does not stop a
run in progress.`,
		Annotations: map[string]string{exitTitle: `  2  the time is in the past, or a job is unknown; nothing was changed`},
		Example: `  zxfer replicate pause --for 8h --reason 'new switch' home
      pause one job for eight hours
  zxfer replicate pause --all --until 06:00 --transfers-only
      keep the link free until six o'clock, and still take snapshots
  zxfer replicate pause home
      pause a job until zxfer replicate resume home`,
		Args: requireJobs(&o.all),
		RunE: func(cmd *cobra.Command, args []string) error { return o.pause(cmd, a, args) },
	}
	o.define(cmd, true, false)
	flagGroup(cmd, "Pause", func(fs *pflag.FlagSet) {
		fs.BoolVar(&o.all, "all", false, allHelp)
		fs.StringVar(&o.lasts, "for", "", "end after `TIME`, such as 8h or 2d")
		fs.StringVar(&o.until, "until", "", "end at `TIME`, such as 06:00 or \"2026-11-27 06:00\"")
		fs.BoolVar(&o.transfersOnly, "transfers-only", false, "keep taking snapshots, and pruning the source")
		fs.StringVar(&o.reason, "reason", "", "show `TEXT` in status and messages")
	})
	return cmd
}

func newReplicateResume(a *app) *cobra.Command {
	o := &pauseOptions{}
	cmd := &cobra.Command{
		Use:   "resume [FLAGS] JOB ...",
		Short: "End the pause of jobs",
		Long: `End the pause of jobs. The next scheduled run catches up. With --all, the
pauses of single jobs end, too.`,
		Annotations: map[string]string{exitTitle: `  3  pause --all is in effect, and only resume --all ends it`},
		Example: `  zxfer replicate resume home
      end the pause of one job
  zxfer replicate resume --all
      end all pauses`,
		Args: requireJobs(&o.all),
		RunE: func(cmd *cobra.Command, args []string) error { return o.resume(cmd, a, args) },
	}
	o.define(cmd, true, false)
	flagGroup(cmd, "Pause", func(fs *pflag.FlagSet) { fs.BoolVar(&o.all, "all", false, allHelp) })
	return cmd
}

// request returns the requested pause.
func (o *pauseOptions) request(now time.Time) (*decide.Pause, error) {
	p := &decide.Pause{Since: now.UTC().Truncate(time.Second), TransfersOnly: o.transfersOnly, Reason: o.reason, By: callerName()}
	switch {
	case o.lasts != "" && o.until != "":
		return nil, fault.Usagef("omit one of them", "--for and --until exclude each other")
	case o.lasts != "":
		var d calendar.Duration
		if err := d.UnmarshalText([]byte(o.lasts)); err != nil {
			return nil, fault.Usagef("", "--for: %w", err)
		}
		if d == 0 {
			return nil, fault.Usagef("write a time span such as 8h, or omit --for to pause until resume", "--for %s: the pause would have no effect", o.lasts)
		}
		p.Until = p.Since.Add(time.Duration(d))
	case o.until != "":
		at, err := replicate.ParseTime(o.until, now)
		if err != nil {
			return nil, fmt.Errorf("--until: %w", err)
		}
		p.Until = at.UTC()
	}
	return p, p.Check(now)
}

func (o *pauseOptions) pause(cmd *cobra.Command, a *app, names []string) error {
	now := a.now()
	p, err := o.request(now)
	if err != nil {
		return err
	}
	f, jobs, err := o.jobs(names)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if p.TransfersOnly && !o.all && len(j.Targets) == 0 {
			return fault.Usagef("omit --transfers-only", "job %q has no [[job.target]], so it has no transfers to pause", j.Name)
		}
	}
	stores, err := o.stores(jobs)
	if err != nil {
		return err
	}
	for _, s := range stores {
		if err := savePause(s, p); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		fmt.Fprintf(a.stdout, "%s: %s\n", j.Name, p.Text(localTime))
		if stop := statedir.Peek(o.stateDir, j.Name).RunCommand(unit.Name(j.Name)); stop != "" {
			fmt.Fprintf(a.stdout, "  a run is in progress, and the pause does not stop it; to stop it: %s\n", report.Line(stop))
		}
	}
	return o.writeMetrics(cmd.Context(), a, f)
}

// stores returns the stores whose pause the command replaces: that of all jobs, or those of jobs.
func (o *pauseOptions) stores(jobs []*replicate.Job) (out []*statedir.Store, err error) {
	if o.all {
		return []*statedir.Store{statedir.All(o.stateDir)}, os.MkdirAll(o.stateDir, 0o755)
	}
	for _, j := range jobs {
		s, err := statedir.Open(o.stateDir, j.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (o *pauseOptions) resume(cmd *cobra.Command, a *app, names []string) error {
	now := a.now()
	f, jobs, err := o.jobs(names)
	if err != nil {
		return err
	}
	every := statedir.All(o.stateDir)
	all, err := every.Pause()
	switch {
	case o.all && (err != nil || all.State(now).Active()):
		err = endPause(every, all, now)
	case !o.all && all.State(now).Active():
		all.All = true
		return fault.Refusef("zxfer replicate resume --all"+o.flags(), "all jobs are %s", all.Text(localTime))
	}
	if err != nil {
		return err
	}
	for _, j := range jobs {
		s := statedir.Peek(o.stateDir, j.Name)
		own, err := s.Pause()
		was := decide.Stronger(own, all, now)
		switch {
		case err == nil && !was.State(now).Active():
			fmt.Fprintf(a.stdout, "%s: was not paused\n", j.Name)
			continue
		case err != nil || own.State(now).Active():
			if err := endPause(s, own, now); err != nil {
				return err
			}
		}
		fmt.Fprintf(a.stdout, "%s: resumed%s\n", j.Name, resumedText(was))
	}
	return o.writeMetrics(cmd.Context(), a, f)
}

// endPause records the end of a pause. A damaged record is replaced.
func endPause(s *statedir.Store, p *decide.Pause, now time.Time) error {
	ended := *cmp.Or(p, &decide.Pause{Since: now.UTC().Truncate(time.Second)})
	ended.Until = now.UTC().Truncate(time.Second)
	return savePause(s, &ended)
}

func savePause(s *statedir.Store, p *decide.Pause) error {
	err := s.SavePause(p)
	if errors.Is(err, fs.ErrPermission) {
		return fault.Failf("run it as root, or as the job's user", "%w", err)
	}
	return err
}

// resumedText describes the pause that ended.
func resumedText(p *decide.Pause) string {
	if p == nil {
		return ""
	}
	text := ", was paused since " + localTime(p.Since)
	if p.Reason != "" {
		text += " (" + p.Reason + ")"
	}
	return text
}

func localTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// callerName returns the account of the user, as sudo knows it, or "".
func callerName() string {
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if by := os.Getenv("SUDO_USER"); by != "" && os.Geteuid() == 0 {
		name = by
	}
	if jobfile.CheckUser(name) != nil {
		return ""
	}
	return name
}
