package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
)

// helpWidth is the width at which flag descriptions wrap.
const helpWidth = 80

// groupKey is the annotation with a flag's group.
const groupKey = "zxfer-group"

// flagGroup adds the flags that define declares to cmd, under title.
func flagGroup(cmd *cobra.Command, title string, define func(*pflag.FlagSet)) {
	fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
	fs.SortFlags = false
	define(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{groupKey: {title}}
	})
	cmd.Flags().SortFlags = false
	cmd.Flags().AddFlagSet(fs)
}

// group is a titled set of flags, in the order of their declaration.
type group struct {
	title string
	flags *pflag.FlagSet
}

// writeHelp writes the whole help of a command.
func writeHelp(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n", cmd.Long, usageLine(cmd))
	if vs := verbs(cmd); len(vs) > 0 {
		b.WriteString("\nVerbs:\n")
		for _, c := range vs {
			fmt.Fprintf(&b, "  %-11s %s\n", c.Name(), c.Short)
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, g := range groupsOf(cmd) {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(helpWidth))
	}
	b.WriteString("\n" + exitCodes)
	_, err := io.WriteString(w, b.String())
	return err
}

// verbs returns the subcommands that help shows.
func verbs(cmd *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			out = append(out, c)
		}
	}
	return out
}

// usageLine returns the syntax of a command.
func usageLine(cmd *cobra.Command) string {
	if cmd.HasParent() && cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " VERB [FLAGS] ..."
	}
	if cmd.HasParent() {
		return cmd.Parent().CommandPath() + " " + cmd.Use
	}
	return cmd.CommandPath() + " VERB [FLAGS] ..."
}

// groupsOf returns the visible flags of a command by group. Flags without a group come last, as
// "General".
func groupsOf(cmd *cobra.Command) []group {
	cmd.InitDefaultHelpFlag()
	var titled []group
	general := group{title: "General", flags: newSet()}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if len(f.Annotations[groupKey]) == 0 {
			general.flags.AddFlag(f)
			return
		}
		title := f.Annotations[groupKey][0]
		for _, g := range titled {
			if g.title == title {
				g.flags.AddFlag(f)
				return
			}
		}
		g := group{title: title, flags: newSet()}
		g.flags.AddFlag(f)
		titled = append(titled, g)
	})
	return append(titled, general)
}

func newSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.SortFlags = false
	return fs
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
