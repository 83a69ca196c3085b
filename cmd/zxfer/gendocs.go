package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/option"
	"zxfer/pkg/replicate"
	"zxfer/pkg/transport"
)

func newGendocs() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:    "gendocs [FLAGS] DIR",
		Short:  "Write the reference of all verbs into a directory",
		Long:   "gendocs writes the reference of all verbs into DIR: a page for each, made from the same texts as the help.",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, text := range pagesOf(cmd.Root(), format) {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Var(option.Word(&format, "markdown", "man"), "format", "what to write")
	return cmd
}

// pagesOf renders every visible command, by file name.
func pagesOf(root *cobra.Command, format string) map[string]string {
	pages := map[string]string{}
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		for _, sub := range verbs(cmd) {
			add(sub)
		}
		if format == "man" {
			pages[pageName(cmd, "-")+".1"] = manPage(cmd)
		} else {
			pages[pageName(cmd, "_")+".md"] = markdownPage(cmd)
		}
	}
	add(root)
	if format != "man" {
		pages["job_transfer.md"] = transferPage()
	}
	return pages
}

// transferPage returns the reference of the transport options in a job file.
func transferPage() string {
	var b strings.Builder
	b.WriteString(`# transfer of a job file

<!-- Made by: go run ./cmd/zxfer gendocs docs/cli -->

How data crosses: keys of ` + "`[job.transfer]`, and of `[job.target.transfer]`" + `, which replaces
the job's. What a key would do nothing with, such as ` + "`ports` with `wire = \"ssh\"`" + `, is refused.

| key | flag of send | takes | meaning |
|---|---|---|---|
`)
	row := func(key, flag, takes, meaning string) {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", key, flag, strings.ReplaceAll(takes, "|", ", "), meaning)
	}
	for _, o := range transport.Options(transport.JobFile) {
		takes := o.Value(&transport.Settings{}).Type()
		if takes == "bool" {
			takes = "true, false"
		}
		row(o.Key, option.Flags(option.Name(o.ID, "")), takes, replicate.Keys(o.Help()))
	}
	return b.String()
}

// pageName joins the words of a command. By convention man pages are named zxfer-send, other pages
// zxfer_send.
func pageName(cmd *cobra.Command, separator string) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", separator)
}

func markdownPage(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n<!-- Made by: go run ./cmd/zxfer gendocs docs/cli -->\n\n%s\n\n", cmd.CommandPath(), cmd.Long)
	fmt.Fprintf(&b, "```\n%s\n```\n", usageLine(cmd))
	if vs := verbs(cmd); len(vs) > 0 {
		b.WriteString("\n## Verbs\n\n| verb | does |\n|---|---|\n")
		for _, c := range vs {
			fmt.Fprintf(&b, "| [%s](%s.md) | %s |\n", c.Name(), pageName(c, "_"), c.Short)
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n```\n%s\n```\n", cmd.Example)
	}
	for _, g := range groupsOf(cmd) {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | meaning |\n|---|---|\n", g.title)
		g.flags.VisitAll(func(f *pflag.Flag) {
			flag, usage := flagText(f)
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(flag, "|", "\\|"), strings.ReplaceAll(usage, "|", "\\|"))
		})
	}
	b.WriteString("\n## Exit codes\n\n| code | meaning |\n|---|---|\n")
	for _, e := range exitCodeList() {
		fmt.Fprintf(&b, "| %s | %s |\n", e[0], e[1])
	}
	return b.String()
}

func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	name := pageName(cmd, "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"zxfer %s\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), buildVersion(), roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n%s\n", roff(usageLine(cmd)), roffParagraphs(cmd.Long))
	if vs := verbs(cmd); len(vs) > 0 {
		b.WriteString(".SH VERBS\n")
		for _, c := range vs {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(c.Name()), roff(c.Short))
		}
	}
	for _, g := range groupsOf(cmd) {
		fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(g.title))
		g.flags.VisitAll(func(f *pflag.Flag) {
			flag, usage := flagText(f)
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(flag), roff(usage))
		})
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(cmd.Example))
	}
	b.WriteString(".SH EXIT STATUS\n")
	for _, e := range exitCodeList() {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", e[0], roff(e[1]))
	}
	b.WriteString(seeAlso(cmd))
	return b.String()
}

// seeAlso lists the pages of the parent, sibling and child verbs.
func seeAlso(cmd *cobra.Command) string {
	var pages []string
	add := func(c *cobra.Command) { pages = append(pages, ".BR "+roff(pageName(c, "-"))+" (1)") }
	others := verbs(cmd)
	if cmd.HasParent() {
		add(cmd.Parent())
		others = append(others, verbs(cmd.Parent())...)
	}
	for _, c := range others {
		if c != cmd {
			add(c)
		}
	}
	return ".SH SEE ALSO\n.nh\n.ad l\n" + strings.Join(pages, ",\n") + "\n"
}

// flagText returns a flag as typed, and its help with the default.
func flagText(f *pflag.Flag) (flag, usage string) {
	value, usage := pflag.UnquoteUsage(f)
	flag = "--" + f.Name
	if f.Shorthand != "" {
		flag = "-" + f.Shorthand + ", " + flag
	}
	if value != "" {
		flag += " " + value
	}
	switch f.DefValue {
	case "", "false", "[]":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	return flag, usage
}

// exitCodeList returns code and meaning for each line of exitCodes.
func exitCodeList() [][2]string {
	var out [][2]string
	for l := range strings.Lines(exitCodes) {
		code, meaning, ok := strings.Cut(strings.TrimSpace(l), "  ")
		if ok {
			out = append(out, [2]string{code, meaning})
		}
	}
	return out
}

// roff escapes backslashes, hyphens, and lines that would be requests.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// roffParagraphs formats paragraphs. Those with indented lines are tables or commands and keep
// their line breaks.
func roffParagraphs(s string) string {
	paragraphs := strings.Split(roff(s), "\n\n")
	for i, p := range paragraphs {
		if strings.HasPrefix(p, "  ") || strings.Contains(p, "\n  ") {
			paragraphs[i] = ".nf\n" + p + "\n.fi"
		}
	}
	return strings.Join(paragraphs, "\n.PP\n")
}
