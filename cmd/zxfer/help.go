package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
