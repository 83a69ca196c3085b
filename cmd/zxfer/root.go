package main

import (
	"strings"

	"github.com/spf13/cobra"

	"zxfer/pkg/fault"
)

const exitCodes = `Exit codes:
  0  done
  1  failed
  2  usage: the command line is wrong
  3  refused: a check or safety rule says no, nothing was changed
  4  interrupted with its state kept: the same command resumes
`

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "zxfer",
		Short: "Move ZFS datasets between hosts over authenticated TCP",
		Long: `zxfer moves ZFS datasets between two hosts as fast as the slowest part
allows, names that part, and lets no unauthenticated byte reach zfs receive.

The other host needs zfs and an ssh server; zxfer starts itself there.`,
		Example: `  zxfer send -n tank/ds backup1:vault     show what would be done
  zxfer send tank/ds@daily backup1:vault  send it
  zxfer send backup1:vault/ds tank/back   fetch it back`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := writeHelp(a.stderr, cmd); err != nil {
				return err
			}
			return &shown{fault.Usagef("", "no verb")}
		},
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true,
		SilenceUsage:               true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRun:           func(*cobra.Command, []string) { a.started = true },
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_ = writeHelp(a.stdout, cmd) // cobra's help function has no error
	})
	root.AddCommand(newSend(a), newDev(a), newDoctor(a), newReplicate(a), newAgent(a), newVersion(a), newCompletion(a), newGendocs())
	help := newHelp(a)
	root.SetHelpCommand(help)
	root.AddCommand(help) // cobra itself would only once it executes
	return root
}

func unknownVerb(root *cobra.Command, name string) error {
	hint := "zxfer help lists the verbs"
	if near := root.SuggestionsFor(name); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?\n" + hint
	}
	return fault.Usagef(hint, "unknown command %q for %q", name, root.CommandPath())
}

func newHelp(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Show the help of a verb",
		Long:  "help shows the help of a verb, or of zxfer.",
		Args:  cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range cmd.Root().Commands() {
				if c.IsAvailableCommand() && len(args) == 0 {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if len(args) == 0 {
				return writeHelp(a.stdout, root)
			}
			for _, c := range root.Commands() {
				if c.Name() == args[0] {
					return writeHelp(a.stdout, c)
				}
			}
			return unknownVerb(root, args[0])
		},
	}
}
