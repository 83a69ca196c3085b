package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/report"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// healOptions holds the flags of heal.
type healOptions struct {
	output
	req     heal.Request
	config  replicateOptions
	job     string // heal all datasets of this job; "" = as the arguments say
	lockErr error  // why the jobs cannot be locked
}

func newHeal(a *app) *cobra.Command {
	o := &healOptions{}
	cmd := &cobra.Command{
		Use:   "heal [FLAGS] (POOL|DATASET [COPY] | --job JOB)",
		Short: "Repair damaged blocks with data from a copy",
		Long: `Repair damaged blocks of files and volumes with data from a copy. zxfer reads
the pool's error list, sends the damaged blocks of a good snapshot (zfs receive
-c, OpenZFS 2.2 or later), and scrubs. It cannot repair metadata, or blocks
that only older snapshots contain.`,
		Annotations: map[string]string{argsTitle: `  POOL, DATASET  [[user@]host:]POOL or DATASET to repair
  COPY           [[user@]host:]DATASET (default: copies in the job file)`},
		Example: `  zxfer heal -n tank
      list the damage and what can repair it; change nothing
  zxfer heal tank
      repair with the copies that the job file names
  zxfer heal backup1:vault/home tank/home
      repair a copy with data from its source
  zxfer heal --job home
      repair the source of a job from its copies, and the copies from the source`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.job != "" && len(args) > 0:
				return fault.Usagef("omit it", "heal takes no arguments with --job: %q", args[0])
			case o.job == "" && len(args) != 1 && len(args) != 2:
				return fault.Usagef(helpOf(cmd), "heal requires POOL or DATASET, and COPY if the job file names no copy, or --job JOB")
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkJob(cmd.Flags()); err != nil {
				return err
			}
			if err := o.request(a, args, cmd.Flags().Changed("config")); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	o.req.Retries = transport.Retries
	flagGroup(cmd, "Jobs", func(f *pflag.FlagSet) {
		f.StringVar(&o.job, "job", "", "repair the source of `JOB` and its copies from each other")
		f.StringVarP(&o.config.file, "config", "c", defaultJobFile, configHelp)
		f.StringVar(&o.config.stateDir, "state-dir", defaultStateDir, stateDirHelp)
		f.StringVar(&o.config.host, "host", "", hostHelp)
	})
	_ = cmd.RegisterFlagCompletionFunc("job", o.config.completeJobs) // the flag exists
	transportGroup(cmd, &o.req.Settings, transport.Send)
	flagGroup(cmd, "Run", func(f *pflag.FlagSet) {
		f.BoolVarP(&o.req.DryRun, "dry-run", "n", false, dryRunHelp)
		f.BoolVar(&o.req.NoScrub, "no-scrub", false, "do not scrub afterwards; the error list remains until a scrub")
		f.Var(option.Count(&o.req.Retries, 0, transport.MaxRetries), "retries", retriesHelp)
		o.define(f, "")
	})
	return cmd
}

// checkJob refuses flags that have no effect with --job.
func (o *healOptions) checkJob(flags *pflag.FlagSet) error {
	if o.job == "" {
		return nil
	}
	var names []string
	for _, t := range transport.Options(transport.Send) {
		names = append(names, t.ID)
	}
	return refuseIneffective(flags, "with --job: the job file has the options of the connection", names...)
}

// request fills in the job's request.
func (o *healOptions) request(a *app, args []string, named bool) error {
	o.req.SnapshotSuffix = a.now().UTC().Format("2006-01-02T15:04:05Z")
	ends := make([]endpoint.Endpoint, len(args))
	for i, arg := range args {
		e, err := endpoint.Parse(arg)
		if err != nil {
			return err
		}
		if e.Path() || e.Relative() || strings.ContainsAny(e.Name, "@#") || strings.HasSuffix(e.Name, "/") {
			return fault.Usagef("write [[user@]host:]POOL or DATASET", "%q does not name a dataset", e)
		}
		ends[i] = e
	}
	if o.job == "" {
		o.req.At = ends[0]
	}
	if o.req.Wire == transport.NC {
		return fault.Usagef("choose another --wire", "--wire nc cannot heal: it runs no zxfer on the remote host")
	}
	if len(ends) == 2 {
		o.req.Copy = &ends[1]
		if err := checkTransport(&o.req.Settings, transport.Send, ends[0], ends[1]); err != nil {
			return err
		}
	}
	if named {
		o.req.Flags = []string{"--config", o.config.file}
	}
	if o.config.host != "" {
		o.req.Flags = append(o.req.Flags, "--host", o.config.host)
	}
	if _, err := os.Stat(o.config.file); o.job == "" && !named && errors.Is(err, os.ErrNotExist) {
		return nil // no job is known
	}
	f, err := o.config.load()
	if err != nil && !named && o.req.Copy != nil {
		if !o.req.DryRun { // a dry run locks no job
			o.lockErr = err
		}
		return nil // no job can run, and COPY is given
	}
	if err != nil {
		return err
	}
	o.req.Lock = func(ctx context.Context, name string) (func(), error) {
		r, _ := o.config.runner(a)
		unlock, err := r.Env.LockJob(ctx, f.Find(name))
		if err != nil {
			_ = r.Env.Close()
			return nil, err
		}
		return func() { unlock(); _ = r.Env.Close() }, nil
	}
	if o.req.Copies, err = copiesOf(f); err != nil || o.job == "" {
		return err
	}
	return o.chooseJob()
}

// chooseJob restricts the request to the datasets and copies of a job.
func (o *healOptions) chooseJob() error {
	_, jobs, err := o.config.jobs([]string{o.job})
	if err != nil {
		return err
	}
	if len(jobs[0].Targets) == 0 {
		return fault.Usagef("to use another copy: zxfer heal "+zfs.CommandLine([]string{jobs[0].Source})+" HOST:COPY", "job %q has no target, so it has no copy", o.job)
	}
	o.req.Job = o.job
	return nil
}

// copiesOf returns all pairs of source and copy in a job file.
func copiesOf(f *replicate.File) (all []heal.Copy, err error) {
	for i := range f.Jobs {
		copies, err := session.CopiesOf(&f.Jobs[i])
		if err != nil {
			return nil, err
		}
		all = append(all, copies...)
	}
	return all, nil
}

func (o *healOptions) run(ctx context.Context, a *app) error {
	j, err := o.start(a, a.stdout, device.Streams{})
	if err != nil {
		return err
	}
	if o.lockErr != nil {
		j.log("jobs of " + o.config.file + " may run at the same time:  " + o.lockErr.Error())
	}
	if o.job != "" {
		r, err := heal.RunJob(ctx, o.req, j.at, j.rep)
		return j.finish(ctx, r, err, jobEnd{text: report.HealJobResult(r)})
	}
	r, err := heal.Run(ctx, o.req, j.at, j.rep)
	return j.finish(ctx, r, err, jobEnd{text: report.HealResult(r)})
}
