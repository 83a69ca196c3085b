package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/sshexec"
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

// requireVerb shows the help of a command that requires a verb.
func (a *app) requireVerb(cmd *cobra.Command) error {
	if err := writeHelp(a.stderr, cmd); err != nil {
		return err
	}
	return &reportedError{fault.Usagef("", "no verb")}
}

// refuseUnknownVerb refuses an argument that is not a verb.
func refuseUnknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownVerb(cmd, args[0])
	}
	return nil
}

// unknownVerb returns the error for an unknown verb of parent.
func unknownVerb(parent *cobra.Command, name string) error {
	hint := didYouMean(parent.SuggestionsFor(name)) + helpOf(parent) + " lists the verbs"
	return fault.Usagef(hint, "unknown verb %q for %q", name, parent.CommandPath())
}

// helpOf returns the command that shows the help of a verb.
func helpOf(cmd *cobra.Command) string {
	_, names, _ := strings.Cut(cmd.CommandPath(), " ")
	return strings.TrimSpace("zxfer help " + names)
}

func newHelp(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB ... | TOPIC]",
		Short: "Show the help of a verb or topic",
		Long:  "Show the help of a verb or topic.",
		Example: `  zxfer help replicate run
  zxfer help transport`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if of, err := find(cmd.Root(), args); err == nil {
				for _, c := range of.Commands() {
					if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() {
						names = append(names, c.Name())
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := find(cmd.Root(), args)
			if err != nil {
				return err
			}
			return writeHelp(a.stdout, of)
		},
	}
}

// find returns the subcommand with these names.
func find(cmd *cobra.Command, names []string) (*cobra.Command, error) {
	for _, name := range names {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
		if i < 0 {
			return nil, unknownVerb(cmd, name)
		}
		cmd = cmd.Commands()[i]
	}
	return cmd, nil
}

// didYouMean returns the first line of a hint, or "" without suggestions.
func didYouMean(near []string) string {
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?\n"
}

// similarFlags returns the flags that a misspelt flag may have meant.
func similarFlags(cmd *cobra.Command, err error) (near []string) {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return nil
	}
	typed := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); len(letters) > 1 {
		typed = letters // -snapshot
	}
	typed, _, _ = strings.Cut(typed, "=")
	// cobra suggests names only for verbs, so the flags become verbs.
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && len(typed) > 1 {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	for _, name := range names.SuggestionsFor(typed) {
		near = append(near, "--"+name)
	}
	return near
}

// suggestHost adds a hint if a missing local pool has the name of a host.
func suggestHost(ctx context.Context, err error, shell string) error {
	var none *job.NoPool
	if !errors.As(err, &none) || !none.Local || !sshexec.IsKnownHost(ctx, remoteShell(shell), none.Pool) {
		return err
	}
	return &fault.Error{Class: fault.ClassOf(err), Hint: didYouMean([]string{none.Pool + ":POOL"}) + fault.HintOf(err), Err: err}
}
