package main

import (
	"slices"
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
		Args: noVerbOfThatName,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return buildReport().text(a.stdout, false)
			}
			return a.noVerb(cmd)
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
		_ = writeHelp(a.stdout, cmd) // cobra's help function has no error
	})
	root.AddCommand(newSend(a), newRestore(a), newHeal(a), newCompare(a), newDev(a), newDoctor(a), newReplicate(a), newUninstall(a), newAgent(a), newVersion(a), newCompletion(a), newGendocs(), newFreezeGuard(a))
	help := newHelp(a)
	root.SetHelpCommand(help)
	root.AddCommand(help) // cobra itself would only once it executes
	completeValues(root)
	return root
}

// noVerb shows the help of a command that only leads to verbs.
func (a *app) noVerb(cmd *cobra.Command) error {
	if err := writeHelp(a.stderr, cmd); err != nil {
		return err
	}
	return &shown{fault.Usagef("", "no verb")}
}

// noVerbOfThatName refuses what is left of the arguments where verbs were tried.
func noVerbOfThatName(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownVerb(cmd, args[0])
	}
	return nil
}

// unknownVerb is the error of a name that parent has no verb of.
func unknownVerb(parent *cobra.Command, name string) error {
	hint := didYouMean(parent.SuggestionsFor(name)) + helpOf(parent) + " lists the verbs"
	return fault.Usagef(hint, "unknown verb %q for %q", name, parent.CommandPath())
}

// helpOf is the command line that shows the help of a verb.
func helpOf(cmd *cobra.Command) string {
	_, names, _ := strings.Cut(cmd.CommandPath(), " ")
	return strings.TrimSpace("zxfer help " + names)
}

func newHelp(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB ...]",
		Short: "Show the help of a verb",
		Long:  "help shows the help of a verb, or of zxfer.",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if of, err := find(cmd.Root(), args); err == nil {
				for _, c := range of.Commands() {
					if c.IsAvailableCommand() {
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

// find follows names down from a command.
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
