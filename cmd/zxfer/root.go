package main

import (
	"github.com/spf13/cobra"
)

func newRoot(a *app) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "zxfer VERB [FLAGS] ...",
		Short: "Replicate ZFS datasets and copy block devices between hosts",
		Long: `zxfer sends ZFS datasets and block devices between hosts over authenticated TCP
connections, and reports what limits the rate. A remote host needs an ssh
server, and ZFS for datasets. zxfer copies itself there.`,
		Annotations: map[string]string{exitTitle: `  0  success
  1  failure
  2  usage error: the command line or the job file is wrong
  3  refused by a check or safety rule; nothing was changed
  4  interrupted; run the same command again to resume`},
		Example: `  zxfer doctor backup1
      check both hosts and the link, and estimate the transfer rate
  zxfer send -n tank/home backup1:vault
      show the plan of a transfer, and change nothing
  zxfer send -R --snapshot= tank/home backup1:vault
      snapshot tank/home and its descendants, and send them to vault/home
  zxfer restore backup1:vault/home tank/home-back
      restore the copy as a new dataset
  zxfer dev /dev/vg/db backup1:/srv/db.img
      copy a block device to an image file`,
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
	root.Flags().BoolVar(&version, "version", false, "show the version")
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_ = writeHelp(a.stdout, cmd) // cobra's help function returns no error
	})
	help := newHelp(a)
	root.SetHelpCommand(help) // a verb of its own; cobra would add it only on execution
	addVerbs(root, "Verbs", newSend(a), newRestore(a), newReplicate(a), newCompare(a), newHeal(a), newDev(a), newDoctor(a))
	addVerbs(root, "More verbs", newUninstall(a), newCompletion(a), newVersion(a), help)
	root.AddCommand(newAgent(a), newFreezeGuard(a), newTransportTopic(), newGrantsTopic(), newChecksTopic())
	finishCommand(root)
	return root
}

// finishCommand completes cmd and its subcommands, whose flags are all declared.
func finishCommand(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true // Use has [FLAGS]
	completeValues(cmd)
	for _, c := range cmd.Commands() {
		finishCommand(c)
	}
}

func newReplicate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replicate VERB [FLAGS] ...",
		Short: "Replicate datasets on a schedule",
		Long: `Replicate datasets on a schedule, as a job file describes. Each run takes
snapshots, sends new ones to the targets, and destroys snapshots that the
retention policy does not keep. systemd timers or cron start the runs.`,
		Example: `  zxfer replicate init
      ask four questions and write a job file
  zxfer replicate check
      show what the next run of each job would do
  zxfer replicate install
      start a systemd timer for each job`,
		Args:                       refuseUnknownVerb,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return a.requireVerb(cmd) },
		SuggestionsMinimumDistance: 2,
	}
	addVerbs(cmd, "First steps", newReplicateInit(a), newReplicateCheck(a), newReplicateRun(a), newReplicateStatus(a), newReplicateInstall(a))
	addVerbs(cmd, "More verbs", newReplicateAuthorize(a), newReplicateDrill(a), newReplicateHolds(a), newReplicateImport(a), newReplicateLog(a),
		newReplicateMetrics(a), newReplicateNotify(a), newReplicatePause(a), newReplicatePromote(a), newReplicatePrune(a), newReplicateResume(a),
		newReplicateSwitch(a), newReplicateUninstall(a))
	return cmd
}
