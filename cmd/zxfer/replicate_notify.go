package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/unit"
)

func newReplicateNotify(a *app) *cobra.Command {
	o := &replicateOptions{}
	var all, due bool
	cmd := &cobra.Command{
		Use:   "notify [FLAGS] JOB ...",
		Short: "Send a test ping and a test mail",
		Long: `Send a test ping and a test mail of jobs, as the [notify] table of the job file
describes them. The ping changes no state of the check.`,
		Example: `  zxfer replicate notify home
      test the messages of one job`,
		Args: requireJobs(&all),
		RunE: func(cmd *cobra.Command, args []string) error { return o.notify(cmd.Context(), a, args, due) },
	}
	o.define(cmd, true, false)
	flagGroup(cmd, "Messages", func(fs *pflag.FlagSet) {
		fs.BoolVar(&all, "all", false, allHelp)
		fs.BoolVar(&due, "due", false, "send the mail about the last run if due, not a test")
	})
	advanced(cmd, "due")
	return cmd
}

func (o *replicateOptions) notify(ctx context.Context, a *app, names []string, due bool) error {
	_, jobs, err := o.jobs(names)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		jobs = slices.DeleteFunc(jobs, func(j *replicate.Job) bool { return j.Notify == nil })
	}
	r, text := o.runner(a)
	defer startLive(text)()
	var errs []error
	for _, j := range jobs {
		switch result := os.Getenv("SERVICE_RESULT"); {
		case due && slices.Contains([]string{"signal", "core-dump", "oom-kill", "watchdog", "timeout"}, result):
			errs = append(errs, r.MailUnrecorded(ctx, j, "the run was killed: "+result))
		case due && result == "exit-code" && os.Getenv("EXIT_STATUS") == "1":
			errs = append(errs, r.MailLast(ctx, j, "the run failed and left no record; see journalctl -u "+unit.Name(j.Name)))
		case due:
			errs = append(errs, r.MailLast(ctx, j, ""))
		case j.Notify == nil:
			errs = append(errs, fault.Usagef("add a [notify] table to the job file", "job %q sends no messages", j.Name))
		default:
			sent, err := r.SendTest(ctx, j)
			text.EndJob()
			errs = append(errs, err)
			if len(sent) > 0 {
				fmt.Fprintf(a.stdout, "%s: sent %s\n", j.Name, strings.Join(sent, ", "))
			}
		}
	}
	errs = append(errs, r.Env.Close())
	return outcome.Join(errs...)
}
