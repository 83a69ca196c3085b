package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/report"
)

// failoverOptions holds the flags of promote and switch.
type failoverOptions struct {
	replicateOptions
	failover.Options
}

const mountpointHelp = "mount the copy at `PATH`, or none (default: as the source)"

func newReplicatePromote(a *app) *cobra.Command {
	o := &failoverOptions{}
	cmd := &cobra.Command{
		Use:   "promote [FLAGS] JOB [TARGET]",
		Short: "Make a copy the source after its source was lost",
		Long: `Make a copy of a job the source: hold the common snapshot, record the change of
roles, make the copy writable, and mount it as its source was mounted. From then
on, the job refuses to overwrite it. promote destroys nothing, and does not stop
the former source: make sure that it does not run. If both sides can be reached,
use zxfer replicate switch instead.`,
		Annotations: map[string]string{argsTitle: `  JOB     a job of the job file, also that of the source's host
  TARGET  the target with the copy (default: the only one); if the file has no
          such job, the dataset of the copy`,
			exitTitle: `  3  the source is alive, the mountpoint is in use, or the roles contradict`},
		Example: `  zxfer replicate promote -n home
      show the steps
  zxfer replicate promote home
      make the copy of a lost source the source
  zxfer replicate promote --mountpoint none home vault/home
      promote a copy on a host without the job file`,
		Args: jobAndTarget,
		RunE: func(cmd *cobra.Command, args []string) error { return o.promote(cmd.Context(), a, args) },
	}
	o.defineFailover(cmd)
	flagGroup(cmd, "Run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&o.SourceAlive, "source-alive", false, "promote a copy of a writable source, so that both are writable")
	})
	return cmd
}

func newReplicateSwitch(a *app) *cobra.Command {
	o := &failoverOptions{}
	cmd := &cobra.Command{
		Use:   "switch [FLAGS] JOB [TARGET]",
		Short: "Swap the roles of a source and its copy",
		Long: `Swap the roles of a job's source and its copy. First stop the programs that use
the source. switch runs the job, unmounts the source, makes it read-only, sends
the last increment, makes the copy writable, and mounts it. At no time are both
sides writable.

After that, the job runs in the other direction, and the same command switches
back. If switch is interrupted, run it again. After a promotion, it makes the
returned source a copy.`,
		Annotations: map[string]string{argsTitle: `  JOB     a job of the job file
  TARGET  the target with the copy (default: the only one, or the switched one)`,
			exitTitle: `  3  the former source has data that the copy lacks, the mountpoint is in use,
     or the roles contradict`},
		Example: `  zxfer replicate switch -n home
      show the steps
  zxfer replicate switch home
      make the copy the source, and the source its copy; then switch back
  zxfer replicate switch --abort home
      make the source writable again after an interrupted switch`,
		Args: jobAndTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Abort {
				if err := refuseIneffective(cmd.Flags(), "with --abort", "mountpoint", "rollback", "rotate"); err != nil {
					return err
				}
			}
			if o.Rollback && o.Rotate {
				return fault.Usagef("omit one of them", "--rollback and --rotate contradict each other")
			}
			return o.swap(cmd.Context(), a, args)
		},
	}
	o.defineFailover(cmd)
	flagGroup(cmd, "Run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&o.Abort, "abort", false, "end a switch before the copy is the source")
		fs.BoolVar(&o.TargetLost, "target-lost", false, "with --abort: the lost copy never became the source")
		fs.BoolVar(&o.Rotate, "rotate", false, "rename a former source with newer data, and send in full")
		fs.BoolVar(&o.Rollback, "rollback", false, "destroy newer data of the former source (preview with -n)")
	})
	return cmd
}

// jobAndTarget requires a job, and permits a target.
func jobAndTarget(cmd *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return fault.Usagef(helpOf(cmd), "%s requires one job, and at most one target", cmd.Name())
	}
	return nil
}

func (o *failoverOptions) defineFailover(cmd *cobra.Command) {
	o.define(cmd, true, true)
	flagGroup(cmd, "Run", func(fs *pflag.FlagSet) {
		fs.BoolVarP(&o.DryRun, "dry-run", "n", false, dryRunHelp)
		fs.StringVar(&o.Mountpoint, "mountpoint", "", mountpointHelp)
	})
	cmd.ValidArgsFunction = o.completeTargets
}

// completeTargets completes a job, and then one of its targets.
func (o *failoverOptions) completeTargets(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return o.completeJobs(cmd, args, word)
	}
	var names []string
	if f, err := o.load(); err == nil && len(args) == 1 {
		if j := f.Find(args[0]); j != nil {
			for _, t := range j.Targets {
				names = append(names, t.Name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (o *failoverOptions) promote(ctx context.Context, a *app, args []string) error {
	return o.change(a, func(r *runner.Runner) (*failover.Result, error) {
		f, jobs, err := o.jobs(args[:1])
		if len(args) == 2 {
			o.Target = args[1]
		}
		if err == nil {
			return failover.Promote(ctx, r.Env, runner.Parts{Runner: r}, jobs[0], o.Options)
		}
		if fault.ClassOf(err) != fault.Usage || f != nil {
			return nil, err
		}
		if o.Target == "" {
			return nil, errors.Join(err, failover.RefuseUnnamedCopy(ctx, r.Env, args[0]))
		}
		j, ofCopy := failover.JobOfCopy(ctx, r.Env, args[0], o.Target)
		if ofCopy != nil {
			return nil, errors.Join(err, ofCopy)
		}
		o.Target, o.SourceUnknown = j.Targets[0].Name, true
		return failover.Promote(ctx, r.Env, runner.Parts{Runner: r}, j, o.Options)
	})
}

func (o *failoverOptions) swap(ctx context.Context, a *app, args []string) error {
	if o.TargetLost && !o.Abort {
		return fault.Usagef("add --abort", "--target-lost has an effect only with --abort")
	}
	return o.change(a, func(r *runner.Runner) (*failover.Result, error) {
		_, jobs, err := o.jobs(args[:1])
		if err != nil {
			return nil, err
		}
		if len(args) == 2 {
			o.Target = args[1]
		}
		return failover.Switch(ctx, r.Env, runner.Parts{Runner: r}, jobs[0], o.Options)
	})
}

// change runs a change of roles and prints its result.
func (o *failoverOptions) change(a *app, do func(*runner.Runner) (*failover.Result, error)) error {
	r, text := o.runner(a)
	defer startLive(text)()
	f, err := do(r)
	text.EndJob()
	errs := []error{err, r.Env.Close()}
	switch {
	case f == nil:
	case o.json:
		errs = append(errs, writeJSON(a.stdout, f))
	default:
		errs = append(errs, report.FailoverText(a.stdout, f))
	}
	return errors.Join(errs...)
}
