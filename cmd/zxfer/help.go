package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
)

// helpWidth is the maximum width of lines in help.
const helpWidth = 80

// Annotations of flags and commands.
const (
	groupKey = "zxfer-group" // of a flag: the title of its group
	topicKey = "zxfer-topic" // of a flag: the help topic that lists it instead of the verb
	rankKey  = "zxfer-rank"  // of a command: its position in its group
)

// Titles of sections of help. An annotation of the command with this key holds the lines.
const (
	argsTitle   = "Arguments"
	valuesTitle = "Values"
	checksTitle = "Checks"
	grantsTitle = "Grants"
	exitTitle   = "Exit codes"
)

// advancedTitle is the title of the last group of flags.
const advancedTitle = "Advanced flags"

// flagGroup adds the flags that define declares to cmd, under title.
func flagGroup(cmd *cobra.Command, title string, define func(*pflag.FlagSet)) {
	fs := newSet()
	define(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{groupKey: {title}}
	})
	cmd.Flags().SortFlags = false
	cmd.Flags().AddFlagSet(fs)
}

// advanced moves flags of cmd, which must exist, to the last group.
func advanced(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		cmd.Flags().Lookup(n).Annotations[groupKey] = []string{advancedTitle}
	}
}

// addVerbs adds verbs to cmd as a titled group. Help lists them in this order.
func addVerbs(cmd *cobra.Command, title string, verbs ...*cobra.Command) {
	cmd.AddGroup(&cobra.Group{ID: title, Title: title})
	for i, v := range verbs {
		v.GroupID = title
		annotate(v, rankKey, fmt.Sprintf("%02d", i))
	}
	cmd.AddCommand(verbs...)
}

// annotate sets an annotation of a command.
func annotate(cmd *cobra.Command, key, value string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = value
}

// group is a titled set of flags, in the order of their declaration.
type group struct {
	title string
	flags *pflag.FlagSet
}

// writeHelp writes the help of a command or topic.
func writeHelp(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString(cmd.Long + "\n")
	if !cmd.IsAdditionalHelpTopicCommand() {
		fmt.Fprintf(&b, "\nUsage:\n  %s\n", cmd.UseLine())
	}
	section := func(title, lines string) {
		if lines != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", title, lines)
		}
	}
	for _, title := range []string{argsTitle, checksTitle, grantsTitle} {
		section(title, cmd.Annotations[title])
	}
	for _, g := range cmd.Groups() {
		section(g.Title, commandLines(verbsOf(cmd, g)))
	}
	section("Examples", cmd.Example)
	groups, topics := groupsOf(cmd)
	for _, g := range groups {
		section(g.title, strings.TrimRight(g.flags.FlagUsagesWrapped(helpWidth), "\n"))
	}
	for _, title := range []string{valuesTitle, exitTitle} {
		section(title, cmd.Annotations[title])
	}
	section("Help topics", commandLines(topicsOf(cmd)))
	for _, topic := range topics {
		fmt.Fprintf(&b, "\nFlags for the connection, such as --bwlimit and -e: zxfer help %s\n", topic)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// commandLines returns a line for each command.
func commandLines(cmds []*cobra.Command) string {
	lines := make([]string, len(cmds))
	for i, c := range cmds {
		lines[i] = fmt.Sprintf("  %-11s %s", c.Name(), c.Short)
	}
	return strings.Join(lines, "\n")
}

// verbsOf returns the verbs of a group in its order.
func verbsOf(cmd *cobra.Command, g *cobra.Group) []*cobra.Command {
	verbs := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return c.GroupID != g.ID })
	slices.SortFunc(verbs, func(a, b *cobra.Command) int { return cmp.Compare(a.Annotations[rankKey], b.Annotations[rankKey]) })
	return verbs
}

// topicsOf returns the help topics of a command.
func topicsOf(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return !c.IsAdditionalHelpTopicCommand() })
}

// groupsOf returns the flags that the help of a command shows, by group, and the topics that
// list its other flags. Advanced flags come last, and only help of the root shows --help.
func groupsOf(cmd *cobra.Command) (groups []group, topics []string) {
	cmd.InitDefaultHelpFlag()
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		topic := f.Annotations[topicKey]
		switch {
		case f.Hidden || f.Name == "help" && cmd.HasParent():
			return
		case topic != nil && topic[0] != cmd.Name():
			topics = append(topics, topic[0])
			return
		}
		title := "Flags"
		if t := f.Annotations[groupKey]; t != nil {
			title = t[0]
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.title == title })
		if i < 0 {
			i, groups = len(groups), append(groups, group{title, newSet()})
		}
		groups[i].flags.AddFlag(f)
	})
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Compare(strings.Count(a.title, advancedTitle), strings.Count(b.title, advancedTitle))
	})
	return groups, slices.Compact(topics)
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
