package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// maxHelpLines is the maximum number of lines in a command's help.
const maxHelpLines = 60

// documented returns all commands and topics in the reference, the root command first.
func documented(root *cobra.Command) (all []*cobra.Command) {
	all = append(all, root)
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() || c.Name() == "help" || c.Name() == "agent" {
			all = append(all, documented(c)...)
		}
	}
	return all
}

func TestHelpIsShort(t *testing.T) {
	t.Parallel()
	for _, cmd := range documented(newRoot(&app{})) {
		var text bytes.Buffer
		require.NoError(t, writeHelp(&text, cmd))
		require.LessOrEqual(t, strings.Count(text.String(), "\n"), maxHelpLines, "help of %s is too long", cmd.CommandPath())
		for line := range strings.Lines(text.String()) {
			require.LessOrEqual(t, len(line)-1, helpWidth, "%s: %s", cmd.CommandPath(), line)
		}
		purpose, _, _ := strings.Cut(cmd.Long, "\n\n")
		require.LessOrEqual(t, strings.Count(purpose+"\n", ".\n")+strings.Count(purpose, ". "), 4, "description of %s is too long", cmd.CommandPath())
	}
}

func TestFlagsHaveShortHelp(t *testing.T) {
	t.Parallel()
	for _, cmd := range documented(newRoot(&app{})) {
		cmd.InitDefaultHelpFlag()
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			words := strings.Fields(f.Usage)
			require.NotEmpty(t, words, "%s --%s", cmd.CommandPath(), f.Name)
			require.LessOrEqual(t, len(words), 12, "%s --%s: %s", cmd.CommandPath(), f.Name, f.Usage)
			require.False(t, strings.HasSuffix(f.Usage, "."), "%s --%s: %s", cmd.CommandPath(), f.Name, f.Usage)
		})
	}
}

// TestHelpListsEveryFlag expects every flag in its command's help or in a help topic that this
// help names.
func TestHelpListsEveryFlag(t *testing.T) {
	t.Parallel()
	root := newRoot(&app{})
	helpOf := func(cmd *cobra.Command) string {
		var text bytes.Buffer
		require.NoError(t, writeHelp(&text, cmd))
		return text.String()
	}
	for _, cmd := range documented(root) {
		text := helpOf(cmd)
		for _, topic := range topicsOf(root) {
			if strings.Contains(text, "zxfer help "+topic.Name()+"\n") {
				text += helpOf(topic)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				require.Regexp(t, `(?m)^  (-\w, |    )--`+f.Name+`\b`, text, "%s --%s", cmd.CommandPath(), f.Name)
			}
		})
	}
	require.Contains(t, helpOf(root), "--help")
}

// TestCompletionOffersEveryFlag expects completion to offer all flags of a verb, including
// flags that only a help topic lists.
func TestCompletionOffersEveryFlag(t *testing.T) {
	t.Parallel()
	o := runMain(t, "__complete", "send", "--")
	require.Zero(t, o.code)
	cmd, err := find(newRoot(&app{}), []string{"send"})
	require.NoError(t, err)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			require.Regexp(t, `(?m)^--`+f.Name+`\b`, o.stdout)
		}
	})
	require.Contains(t, o.stdout, "--wire\t")
}
