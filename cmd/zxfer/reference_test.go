package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/preflight"
	"zxfer/pkg/zfs"
)

// Tests generate the reference (docs/reference/cli, docs/reference/checks.md, permissions.md) and the man
// pages from the commands and the details in testdata/man. zxfer itself therefore does not
// contain cobra/doc.

const (
	renewPages = "UPDATE_GOLDEN=1 go test ./cmd/zxfer -run TestReferenceIsCurrent"
	// ZXFER_MAN=DIR writes the man pages to DIR/man1, DIR/man5 and DIR/man7. ZXFER_MAN_VERSION
	// is the version in their footers.
	jobFilePage                     = "zxfer-replicate.toml"
	manVariable, manVersionVariable = "ZXFER_MAN", "ZXFER_MAN_VERSION"
)

func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "docs", "reference")
	pages := map[string]string{"checks.md": checksPage(), "permissions.md": permissionsPage()}
	for name, text := range markdownPages(t) {
		pages[filepath.Join("cli", name)] = text
	}
	old, err := filepath.Glob(filepath.Join(dir, "cli", "*.md"))
	require.NoError(t, err)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		for _, name := range old {
			require.NoError(t, os.Remove(name))
		}
		for name, text := range pages {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		return
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, "run: %s", renewPages)
		require.Equal(t, want, string(got), "docs/reference/%s is stale; run: %s", name, renewPages)
	}
	for _, name := range old {
		require.Contains(t, pages, filepath.Join("cli", filepath.Base(name)), "%s describes no command; run: %s", name, renewPages)
	}
}

// permissionsPage returns the page of the permissions of zfs allow.
func permissionsPage() string {
	var b strings.Builder
	b.WriteString("# Permissions\n\nA test generates this page from `pkg/zfs/allow.go`. An account other than root needs these permissions of `zfs allow`.\n" +
		"These commands print the missing ones, as commands for root:\n\n" +
		"    zxfer doctor --print-allow tank/home backup1:vault/web1\n    zxfer replicate check home\n\n" +
		"`doctor` prints the permissions for one transfer, `check` the permissions for all runs of a job. Run both as the account.\n\n" +
		"| operation | permissions | on |\n|---|---|---|\n")
	for _, a := range zfs.Acts() {
		if a.Text == "" {
			continue // in the row before
		}
		var words []string
		for _, p := range a.Permissions {
			words = append(words, "`"+p+"`")
		}
		if a.Properties {
			words = append(words, "each property that it sets")
		}
		if a.Root {
			words = []string{"only root, on Linux"}
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", a.Text, strings.Join(words, ", "), cmp.Or(a.Where, map[bool]string{false: "the dataset", true: "-"}[a.Root]))
	}
	b.WriteString("\nIf the dataset does not exist yet, its nearest existing ancestor needs the permissions. Each property has a\n" +
		"permission of its own name, user properties have `userprop`. `send:raw` (since 2.4) and `receive:append` (since 2.3.2)\n" +
		"are weaker, and zxfer prints them if they suffice.\n")
	return b.String()
}

func TestManPages(t *testing.T) {
	t.Parallel()
	dir := os.Getenv(manVariable)
	if dir == "" {
		dir = t.TempDir()
	}
	pages := manPages(t)
	require.Contains(t, pages, "man1/zxfer-replicate-status.1")
	for name, text := range pages {
		require.Contains(t, text, ".TH ", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Log("mandoc is not installed: the pages are not linted")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		out, err := exec.Command(mandoc, "-T", "lint", "-W", "warning", filepath.Join(dir, name)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// TestBinaryOmitsPageGenerator expects that zxfer does not depend on the packages that generate
// pages.
func TestBinaryOmitsPageGenerator(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/spf13/cobra\n")
	require.NotContains(t, string(out), "github.com/spf13/cobra/doc")
	require.NotContains(t, string(out), "md2man")
}

// details returns the text of testdata/man/PAGE.md, or "" if that file does not exist. The
// text extends the description.
func details(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "man", page+".md"))
	if os.IsNotExist(err) {
		return ""
	}
	require.NoError(t, err)
	return "\n\n" + strings.TrimSpace(string(text))
}

// pageName returns the path of a command, joined with a separator.
func pageName(cmd *cobra.Command, separator string) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", separator)
}

// section is a titled part of a page.
type section struct{ title, text string }

// sectionsOf returns the sections of a page after its description. title formats the title of
// a group, and flags formats its flags.
func sectionsOf(cmd *cobra.Command, title string, flags func(*pflag.FlagSet) string) (all []section) {
	add := func(title string) {
		if lines := cmd.Annotations[title]; lines != "" {
			all = append(all, section{title, "```\n" + lines + "\n```"})
		}
	}
	for _, title := range []string{argsTitle, checksTitle, grantsTitle, valuesTitle} {
		add(title)
	}
	groups, topics := groupsOf(cmd)
	var parts []string
	for _, g := range groups {
		parts = append(parts, fmt.Sprintf(title, g.title)+"\n\n"+flags(g.flags))
	}
	if len(parts) == 1 {
		parts[0] = flags(groups[0].flags)
	}
	for _, topic := range topics {
		parts = append(parts, "**zxfer-"+topic+"**(7) lists the flags for the connection.")
	}
	if len(parts) > 0 {
		all = append(all, section{"Flags", strings.Join(parts, "\n\n")})
	}
	add(exitTitle)
	return all
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

// pageRoot returns the commands for cobra/doc. Their pages list flags in groups, which
// cobra/doc does not support.
func pageRoot() *cobra.Command {
	root := newRoot(&app{})
	root.DisableAutoGenTag = true
	return root
}

func hideFlags(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
}

func markdownPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	table := func(flags *pflag.FlagSet) string {
		var b strings.Builder
		b.WriteString("| flag | meaning |\n|---|---|\n")
		flags.VisitAll(func(f *pflag.Flag) {
			flag, usage := flagText(f)
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(flag, "|", `\|`), strings.ReplaceAll(usage, "|", `\|`))
		})
		return strings.TrimSpace(b.String())
	}
	for _, cmd := range documented(pageRoot()) {
		sections := sectionsOf(cmd, "**%s**", table)
		if cmd.HasSubCommands() {
			sections = append(sections, section{verbsTitle(cmd), linksTo(cmd)})
		}
		hideFlags(cmd)
		cmd.DisableAutoGenTag = true
		cmd.Long += manLink.ReplaceAllStringFunc(details(t, pageName(cmd, "-")), linkTo)
		var b bytes.Buffer
		require.NoError(t, doc.GenMarkdownCustom(cmd, &b, func(s string) string { return s }))
		page, seeAlso, found := strings.Cut(b.String(), "### SEE ALSO")
		require.True(t, found)
		for _, s := range sections {
			page += "### " + s.title + "\n\n" + manLink.ReplaceAllStringFunc(s.text, linkTo) + "\n\n"
		}
		if cmd.HasParent() {
			page += "### See also" + seeAlso
		}
		pages[pageName(cmd, "_")+".md"] = "<!-- Made by: " + renewPages + " -->\n\n" + strings.TrimSpace(page) + "\n"
	}
	return pages
}

// manLink matches the name of a man page in the details.
var manLink = regexp.MustCompile(`\*\*(zxfer[a-z.-]*)\*\*\(\d\)`)

// linkTo returns a link to the reference page that corresponds to a man page.
func linkTo(name string) string {
	page := manLink.FindStringSubmatch(name)[1]
	if page == jobFilePage {
		return "[the job file](../job-file.md)"
	}
	return fmt.Sprintf("[%s](%s.md)", strings.ReplaceAll(page, "-", " "), strings.ReplaceAll(page, "-", "_"))
}

// verbsTitle returns the title of the section about the verbs of a command.
func verbsTitle(cmd *cobra.Command) string {
	if len(topicsOf(cmd)) > 0 {
		return "Verbs and topics"
	}
	return "Verbs"
}

// linksTo returns a list of the pages about the verbs and topics of a command.
func linksTo(cmd *cobra.Command) string {
	var b strings.Builder
	for _, c := range documented(cmd) {
		if c.Parent() == cmd {
			fmt.Fprintf(&b, "- [%s](%s.md): %s\n", c.CommandPath(), pageName(c, "_"), c.Short)
		}
	}
	return strings.TrimSpace(b.String())
}

// verbList returns a list of the verbs and topics of a command with their man pages.
func verbList(cmd *cobra.Command) string {
	var b strings.Builder
	for _, c := range documented(cmd) {
		if c.Parent() == cmd {
			fmt.Fprintf(&b, "**%s**(%s)\n:   %s\n\n", pageName(c, "-"), manSection(c), c.Short)
		}
	}
	return strings.TrimSpace(b.String())
}

// manSection returns the section of the manual: 1, or 7 for topics.
func manSection(cmd *cobra.Command) string {
	if cmd.IsAdditionalHelpTopicCommand() {
		return "7"
	}
	return "1"
}

// manPages returns the man pages by path: man1/zxfer.1. Topics are in section 7.
func manPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	list := func(flags *pflag.FlagSet) string {
		var b strings.Builder
		flags.VisitAll(func(f *pflag.Flag) {
			flag, usage := flagText(f)
			fmt.Fprintf(&b, "**%s**\n:   %s\n\n", flag, usage)
		})
		return strings.TrimSpace(b.String())
	}
	pages["man5/"+jobFilePage+".5"] = manPage(jobFilePage, "5", "job file of zxfer replicate", jobFileText(t))
	for _, cmd := range documented(pageRoot()) {
		text := cmd.Long + details(t, pageName(cmd, "-"))
		sections := sectionsOf(cmd, "### %s", list)
		if cmd.HasSubCommands() {
			sections = append(sections, section{verbsTitle(cmd), verbList(cmd)})
		}
		if cmd.Annotations[exitTitle] == "" && !cmd.IsAdditionalHelpTopicCommand() {
			sections = append(sections, section{"Exit status", "**zxfer**(1) lists the exit codes."})
		}
		for _, s := range sections {
			text += "\n\n# " + strings.ToUpper(strings.Replace(s.title, exitTitle, "Exit status", 1)) + "\n\n" + s.text
		}
		page := pageName(cmd, "-")
		if manSection(cmd) == "7" {
			pages["man7/"+page+".7"] = manPage(page, "7", cmd.Short, text+"\n\n# SEE ALSO\n\n**zxfer**(1)")
			continue
		}
		hideFlags(cmd)
		cmd.DisableAutoGenTag, cmd.Long = true, text
		header := manHeader(page, "1")
		var b bytes.Buffer
		require.NoError(t, doc.GenMan(cmd, header, &b))
		pages["man1/"+page+".1"] = isoDate(b.String(), header)
	}
	return pages
}

// manPage converts Markdown into a man page that does not describe a command.
func manPage(page, number, short, text string) string {
	h := manHeader(page, number)
	return isoDate(string(md2man.Render(fmt.Appendf(nil, "%% \"%s\" \"%s\" \"%s\" \"%s\" \"%s\"\n# NAME\n%s \\- %s\n\n# DESCRIPTION\n%s\n",
		h.Title, number, h.Date.Format(monthDate), h.Source, h.Manual, page, short, text))), h)
}

// jobFileText returns docs/reference/job-file.md as text for a man page. It converts the
// tables of keys.
func jobFileText(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "job-file.md"))
	require.NoError(t, err)
	_, text, found := strings.Cut(string(raw), "\n\n") // drop the title
	require.True(t, found)
	text = regexp.MustCompile(`(?m)^<!--.*-->\n+`).ReplaceAllString(text, "")
	text = regexp.MustCompile(` \(\[[^][]+\]\([^)]+\)\)`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\[([^][]+)\]\([^)]+\)`).ReplaceAllString(text, "$1")
	text = regexp.MustCompile("(?m)^#(#+ .*)$").ReplaceAllStringFunc(text, func(heading string) string {
		return strings.ReplaceAll(heading[1:], "`", "")
	})
	keys := 0
	text = regexp.MustCompile(`(?m)^\| key \|.*\n\|[-|]+\n((?:\|.*\n)+)`).ReplaceAllStringFunc(text, func(table string) string {
		var b strings.Builder
		for _, row := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
			cells := regexp.MustCompile(`(?:^|[^\\])\|`).Split(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), -1)
			require.Len(t, cells, 5, row)
			for i, c := range cells {
				cells[i] = strings.ReplaceAll(strings.TrimSpace(c), `\|`, "|")
			}
			if cells[2] != "" && cells[2] != "required" {
				cells[2] = "default " + cells[2]
			}
			fmt.Fprintf(&b, "**%s** (%s)\n:   %s. Example: %s\n\n", strings.ReplaceAll(cells[0], "`", ""),
				strings.Join(slices.DeleteFunc(cells[1:3], func(s string) bool { return s == "" }), ", "), cells[4], cells[3])
			keys++
		}
		return b.String()
	})
	require.Greater(t, keys, 60)
	return text + "\n\n# FILES\n\n/etc/zxfer/replicate.toml\n\n# SEE ALSO\n\n**zxfer-replicate**(1), **zxfer-replicate-check**(1)"
}

// monthDate is the date format of cobra/doc. mandoc accepts only ISO dates.
const monthDate = "Jan 2006"

// manHeader returns the header of a page. Its date is the release date or today.
func manHeader(page, number string) *doc.GenManHeader {
	date := time.Now()
	var seconds int64
	if n, _ := fmt.Sscan(os.Getenv("SOURCE_DATE_EPOCH"), &seconds); n == 1 {
		date = time.Unix(seconds, 0)
	}
	date = date.UTC()
	return &doc.GenManHeader{Title: strings.ToUpper(page), Section: number, Date: &date, Source: "zxfer " + cmp.Or(os.Getenv(manVersionVariable), buildVersion()), Manual: "zxfer manual"}
}

func isoDate(text string, h *doc.GenManHeader) string {
	return strings.Replace(text, `"`+h.Date.Format(monthDate)+`"`, `"`+h.Date.Format(time.DateOnly)+`"`, 1)
}

// checksPage returns the reference of all checks.
func checksPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Checks

<!-- Made by: %s -->

`+"`zxfer doctor`"+` evaluates all checks. `+"`zxfer send`, `zxfer restore` and `zxfer dev`"+` evaluate the checks of their transfer before
they change anything. If a check has the level `+"`fail`"+`, zxfer refuses the transfer. `+"`--skip-check ID`"+`, or
`+"`transfer.skip_checks`"+` in a job file, skips any check except `+"`%s`"+`. Levels: `+"`ok`, `note`, `warn`, `fail`"+`.

| ID | condition | reads | source |
|---|---|---|---|
`, renewPages, strings.Join(unskippable(), "`, `"))
	for _, c := range preflight.Checks() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | [link](%s) |\n", c.ID, c.Title, c.Needs, c.Docs)
	}
	return b.String()
}
