package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/agentless"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/report"
	"zxfer/pkg/report/html"
	"zxfer/pkg/transport"
)

type doctorOptions struct {
	req                       doctor.Request
	capture, facts            string
	page                      pageFile
	subject                   []string // what is checked, as named on the command line
	json, printAllow, verbose bool
}

func newDoctor(a *app) *cobra.Command {
	o := &doctorOptions{}
	cmd := &cobra.Command{
		Use:   "doctor [FLAGS] [[SRC] TARGET]",
		Short: "Check hosts and link, and estimate transfer speed",
		Long: `Check this host, another host and the link to it, or a planned transfer. doctor
estimates the transfer rate, names the bottleneck, and prints the command that
fixes each problem. It deletes the scratch data of its measurements.`,
		Annotations: map[string]string{argsTitle: `  TARGET      [user@]HOST, or a path: [[user@]host:]/PATH (default: this host)
  SRC TARGET  a transfer, as for zxfer send`, exitTitle: `  3  a check failed`},
		Example: `  zxfer doctor --quick
      check this host in less than a second
  zxfer doctor backup1
      check both hosts and the link between them
  zxfer doctor tank/home backup1:vault
      estimate how long this transfer takes, and show what limits it`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return fault.Usagef(helpOf(cmd), "doctor accepts at most two arguments: SRC and TARGET (got %d)", len(args))
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true, snapshots: true, alone: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.request(cmd.Flags(), args); err != nil {
				return err
			}
			if o.printAllow && len(args) == 0 {
				return printCommands(a.stdout)
			}
			return runDoctor(cmd.Context(), a, o)
		},
	}
	o.define(cmd)
	for _, flag := range []string{"only", "skip"} {
		completeWords(cmd, flag, doctorIDs()...)
	}
	return cmd
}

func (o *doctorOptions) define(cmd *cobra.Command) {
	req := &o.req
	flagGroup(cmd, "Checks", func(f *pflag.FlagSet) {
		f.BoolVar(&req.Quick, "quick", false, "skip all measurements")
		f.DurationVar(&req.Time, "time", time.Second, "measure for `DURATION` each, 100ms to 1m")
		f.StringSliceVar(&req.Only, "only", nil, "run only the checks and measurements `ID,...`")
		f.StringSliceVar(&req.Skip, "skip", nil, "skip the checks and measurements `ID,...`")
		f.StringVar(&o.capture, "capture", "", "write the facts that checks read to text file `FILE`")
		f.StringVar(&o.facts, "facts", "", "check the facts in `FILE` instead of a host")
	})
	flagGroup(cmd, "Transfer", func(f *pflag.FlagSet) {
		s := &req.Send
		f.BoolVarP(&s.Plan.Recursive, "recursive", "R", false, recursiveHelp)
		f.BoolVar(&s.Plan.Decrypt, "decrypt", false, decryptHelp)
	})
	transportGroup(cmd, &req.Send.Settings, transport.Doctor)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&o.json, "json", false, jsonHelp)
		o.page.define(f)
		f.BoolVar(&o.printAllow, "print-allow", false, "print only zfs allow commands, or what a forced command must permit")
		f.BoolVarP(&o.verbose, "verbose", "v", false, "show passed checks, measure more, and log progress")
	})
}

// doctorIDs returns all values of --only and --skip.
func doctorIDs() []string {
	ids := []string{"link-back", probe.SourceRead, probe.TargetWrite, probe.PathRead, probe.PathWrite}
	ids = append(ids, probe.Local()...)
	for _, c := range preflight.Checks() {
		ids = append(ids, c.ID)
	}
	slices.Sort(ids)
	return ids
}

// request completes and checks the request.
func (o *doctorOptions) request(flags *pflag.FlagSet, args []string) error {
	if err := o.parse(args); err != nil {
		return err
	}
	if o.subject = args; o.facts != "" {
		o.subject = []string{"the facts in " + o.facts}
	}
	return o.checkEffect(flags, len(args))
}

// parse completes the request from the arguments.
func (o *doctorOptions) parse(args []string) error {
	req := &o.req
	req.Full = o.verbose || o.json || o.page.name != ""
	if req.Time < 100*time.Millisecond || req.Time > time.Minute {
		return fault.Usagef("zxfer doctor --help", "--time %s: must be from 100ms to 1m", calendar.Duration(req.Time))
	}
	for _, id := range slices.Concat(req.Only, req.Skip) {
		if !slices.Contains(doctorIDs(), id) {
			return fault.Usagef(didYouMean(similarWords(id, doctorIDs()))+"zxfer help checks", "there is no check or measurement %q", id)
		}
	}
	if o.facts != "" && (len(args) > 0 || o.capture != "") {
		return fault.Usagef("", "--facts cannot be combined with a host or --capture")
	}
	if o.printAllow {
		if len(args) == 1 {
			return fault.Usagef("zxfer doctor --print-allow SRC TARGET\nzxfer doctor --print-allow", "--print-allow needs SRC and TARGET, or no argument")
		}
		req.Quick = true
	}
	switch len(args) {
	case 1:
		return setHost(req, args[0])
	case 2:
		req.Planned, req.Target = true, true
		if err := setSource(&req.Send, args[0]); err != nil {
			return err
		}
		return setTarget(&req.Send, args[1])
	}
	return nil
}

// checkEffect refuses flags that have no effect on this request.
func (o *doctorOptions) checkEffect(flags *pflag.FlagSet, args int) error {
	source, target := o.req.Send.Source.Host, o.req.Send.Target.Host
	for _, c := range []struct {
		when    bool
		because string
		way     transport.Condition
		names   []string
	}{
		{o.facts != "", "with --facts", transport.OneHost | transport.NothingMoved | transport.NoRemoteHost, []string{"recursive", "decrypt", "time"}},
		{o.printAllow, "with --print-allow", 0, []string{"json", "time", "report"}},
		{o.printAllow && args == 0, "with --print-allow without SRC and TARGET", 0,
			[]string{"capture", "facts", "only", "skip", "verbose"}},
		{args < 2, "without SRC and TARGET", 0, []string{"recursive", "decrypt"}},
		{source == target, "if source and target are on the same host", transport.OneHost, nil},
		{source == "" && target == "", "without a remote host", transport.NoRemoteHost, nil},
		{args == 0, "without a TARGET", transport.NothingMoved, nil},
		{o.req.Quick, "with --quick, which measures nothing", 0, []string{"time"}},
	} {
		if !c.when {
			continue
		}
		if err := cmp.Or(o.req.Send.RefuseIneffective(c.way, c.because), refuseIneffective(flags, c.because, c.names...)); err != nil {
			return err
		}
	}
	for _, err := range o.req.Send.Check(transport.Doctor) {
		return err
	}
	for _, id := range o.req.Only {
		if o.req.Quick && !slices.ContainsFunc(preflight.Checks(), func(c preflight.Check) bool { return c.ID == id && !c.Measured() }) {
			return fault.Usagef("omit --quick", "--only %s is a measurement, and --quick measures nothing", id)
		}
	}
	return nil
}

// setHost parses HOST or HOST:, or a path with or without a host.
func setHost(req *doctor.Request, s string) error {
	if e, err := parseEndpoint(s); err == nil && e.Local() && e.Path() {
		req.Path, req.Send.Target = true, e
		return nil
	}
	host, _, hasName := strings.Cut(s, ":")
	if !hasName || s == host+":" {
		s = host + ":-" // for the check of the host name
	}
	e, err := endpoint.Parse(s)
	if err != nil {
		return err
	}
	switch {
	case e.Local():
		return fault.Usagef("zxfer doctor HOST\nzxfer doctor SRC TARGET", "%q is neither a remote host nor an absolute path", strings.TrimSuffix(s, ":-"))
	case !e.Path() && e.Name != "-":
		return fault.Usagef("zxfer doctor "+host+"\nzxfer doctor SRC "+s, "%q is a dataset; to check a transfer to it, name SRC too", s)
	}
	req.Target, req.Send.Target, req.Path = true, e, e.Path()
	return nil
}

// printCommands prints the commands that a host without zxfer must permit.
func printCommands(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "COMMAND\tUSE")
	for _, c := range agentless.Commands() {
		fmt.Fprintf(table, "%s\t%s\n", c.Words, c.Use)
	}
	return table.Flush()
}

func runDoctor(ctx context.Context, a *app, o *doctorOptions) error {
	if err := o.page.check(); err != nil {
		return err
	}
	r, err := diagnose(ctx, a, o)
	if r != nil {
		failure := err
		err = o.page.write(a, err, func(about html.About) ([]byte, error) { return html.Doctor(about, o.subject, r, failure) })
	}
	if err != nil {
		return err
	}
	if o.capture != "" {
		if err := writeFacts(o.capture, r.Archives); err != nil {
			return err
		}
	}
	failed := finding.Failed(r.Findings)
	switch {
	case o.printAllow && len(r.Allow) == 0:
		if err = finding.Refusal(failed); err == nil {
			err = report.DoctorAllow(a.stdout, r)
		}
	case o.printAllow:
		err = report.DoctorAllow(a.stdout, r)
	case o.json:
		err = report.DoctorJSON(a.stdout, r)
	default:
		show := report.DoctorOptions{Verbose: o.verbose, Color: colored(a.stdout)}
		if size := terminalSize(a.stdout); size != nil {
			show.Columns, _ = size()
		}
		err = report.DoctorText(a.stdout, r, show)
	}
	if err != nil {
		return err
	}
	if len(failed) > 0 && !o.printAllow {
		return &reportedError{fault.Refusef("", "%d checks failed", len(failed))}
	}
	return nil
}

func diagnose(ctx context.Context, a *app, o *doctorOptions) (*doctor.Report, error) {
	if o.facts != "" {
		archives, err := readFacts(o.facts)
		if err != nil {
			return nil, err
		}
		return doctor.EvaluateCaptures(archives, o.req)
	}
	if f, err := (&replicateOptions{file: defaultJobFile}).load(); err == nil { // replicate check reports errors of the file
		o.req.Copies, _ = copiesOf(f)
	}
	text := report.NewText(report.Options{Stderr: a.stderr, Quiet: o.json && !o.verbose, Eager: true, Size: terminalSize(a.stderr)})
	defer startLive(text)()
	watch := watcher{text, o.verbose}
	at := hosts.New(&opener{log: watch.Log, activity: watch.ActivityState})
	r, err := doctor.Run(ctx, o.req, at, watch)
	_ = at.Close() // the report is complete; agents end with their stdin
	text.EndJob()
	if err != nil && ctx.Err() != nil {
		err = fault.Interrupt("the data of the measurements was deleted", err)
	}
	return r, err
}

// watcher shows the activities of a doctor and, with --verbose, messages.
type watcher struct {
	*report.Text
	verbose bool
}

func (w watcher) Log(message string) {
	if w.verbose {
		w.Text.Log(message)
	}
}
