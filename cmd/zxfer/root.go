package main

import (
	"github.com/spf13/cobra"
)

const exitCodes = `Exit codes:
  0  done
  1  failed
  2  usage: the command line is wrong
  3  refused: a check or safety rule says no, nothing was changed
  4  interrupted with its state kept: the same command resumes
`

func newRoot(a *app) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "zxfer",
		Short: "Move ZFS datasets and devices between hosts over authenticated TCP",
		Long: `zxfer moves ZFS datasets and raw devices between two hosts as fast as the
slowest part allows, names that part, and lets no unauthenticated byte reach
zfs receive or a disk.

The other host needs an ssh server, and zfs for datasets; zxfer starts itself
there.`,
		Example: `  zxfer send -n tank/ds backup1:vault       show what would be done
  zxfer send tank/ds@daily backup1:vault    send it
  zxfer restore backup1:vault/ds tank/ds    bring it back
  zxfer dev /dev/vg/db backup1:/srv/db.img  copy a device into an image file
  zxfer doctor backup1                      both hosts, the link, what limits it`,
		Args: refuseUnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return buildReport().text(a.stdout, false)
			}
			return a.requireVerb(cmd)
		},
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true,
		SilenceUsage:               true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRun:           func(*cobra.Command, []string) { a.started = true },
	}
	root.Flags().BoolVar(&version, "version", false, "show the version, as zxfer version does")
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_ = writeHelp(a.stdout, cmd) // cobra's help function returns no error
	})
	root.AddCommand(newSend(a), newRestore(a), newHeal(a), newCompare(a), newDev(a), newDoctor(a), newReplicate(a), newUninstall(a), newAgent(a), newVersion(a), newCompletion(a), newGendocs(), newFreezeGuard(a))
	help := newHelp(a)
	root.SetHelpCommand(help)
	root.AddCommand(help) // cobra would add it only on execution
	completeValues(root)
	return root
}

func newReplicate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replicate",
		Short: "Replicate datasets on a schedule",
		Long: `replicate keeps copies of datasets up to date, from a job file: it takes
snapshots, sends what is new to one or more targets, holds and bookmarks what
the next increment needs, and removes what retention does not keep. A job
without a target only takes and removes snapshots.

It has no daemon: systemd timers (replicate install) or cron start one run after
the other. Every step that was interrupted is resumed by the next run. Nothing
on a target is rolled back or destroyed but snapshots that the job itself
brought there and retention does not keep or, where the job file says so (mirror),
what the source no longer has.`,
		Example: `  zxfer replicate init                 ask a few questions, write the job file
  zxfer replicate check                show what the next runs would do
  zxfer replicate install              write and start the systemd timers
  zxfer replicate run home             run a job now
  zxfer replicate status               how every dataset stands
  zxfer replicate drill home           prove that its copies can be restored`,
		Args:                       refuseUnknownVerb,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return a.requireVerb(cmd) },
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newReplicateCheck(a), newReplicateRun(a), newReplicateStatus(a), newReplicateDrill(a), newReplicateLog(a), newReplicateMetrics(a), newReplicatePrune(a),
		newReplicateHolds(a), newReplicateInit(a), newReplicateImport(a), newReplicateInstall(a), newReplicateUninstall(a), newReplicateAuthorize(a))
	return cmd
}
