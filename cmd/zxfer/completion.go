package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/preflight"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
)

func newCompletion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long: `Print a script that completes verbs, flags, datasets, snapshots, jobs, checks
and hosts. After HOST:, the shell queries that host if ssh needs no password.
bash requires the package bash-completion.`,
		Example: `  zxfer completion bash >/etc/bash_completion.d/zxfer
  zxfer completion zsh >/usr/local/share/zsh/site-functions/_zxfer
  zxfer completion fish >/etc/fish/completions/zxfer.fish`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(cmd.ValidArgs, args[0]) {
				return fault.Usagef(helpOf(cmd), "completion requires one argument: bash, zsh or fish")
			}
			return nil
		},
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			}
			return bashCompletion(a.stdout, root)
		},
	}
}

// bashCompletion writes cobra's bash script. COMP_WORDBREAKS has "@" unless hostcomplete is off,
// so the script must treat "@" as part of a word, like ":".
func bashCompletion(w io.Writer, root *cobra.Command) error {
	var script strings.Builder
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	_, err := strings.NewReplacer("_init_completion -n =:", "_init_completion -n =:@",
		`_handle_special_char "$cur" :`, `_handle_special_char "$cur" "[${COMP_WORDBREAKS//[^:@]/}]"`).WriteString(w, script.String())
	return err
}

const (
	// shellTimeout is the longest that a shell waits for a completion. lookLasts is the timeout of
	// one search for candidates.
	shellTimeout  = 500 * time.Millisecond
	searchTimeout = 400 * time.Millisecond
)

// argKind says what an argument may name in addition to a path or HOST:.
type argKind struct {
	datasets, snapshots bool
	alone               bool // a host without a colon
	files               bool // with datasets: a path may also be relative, without "./"
}

// completeEnds completes SRC and TARGET.
func completeEnds(ends ...argKind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(ends) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		kind := ends[len(args)]
		if strings.HasPrefix(typed, "/") || strings.HasPrefix(typed, ".") || typed == "" && (kind.files || !kind.datasets) {
			return nil, cobra.ShellCompDirectiveDefault // the shell completes paths
		}
		shell := ""
		if f := cmd.Flags().Lookup("rsh"); f != nil {
			shell = f.Value.String()
		}
		found := kind.find(cmd.Context(), remoteShell(shell), typed)
		found = slices.DeleteFunc(found, func(name string) bool { return !strings.HasPrefix(name, typed) })
		var directive cobra.ShellCompDirective
		if kind.datasets && !kind.files {
			directive |= cobra.ShellCompDirectiveNoFileComp
		}
		if slices.ContainsFunc(found, func(name string) bool { return strings.HasSuffix(name, ":") }) {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	}
}

// find returns candidates for typed, and possibly others.
func (k argKind) find(ctx context.Context, shell, typed string) []string {
	e, err := endpoint.Parse(typed + "x") // the name may still be empty
	if err != nil {
		return nil
	}
	name := strings.TrimSuffix(e.Name, "x")
	before := strings.TrimSuffix(typed, name) // HOST:
	datasets := func(ctx context.Context) []string { return k.list(ctx, e.Host, shell, before, name) }
	if !e.Local() || strings.Contains(typed, "/") {
		return searchAll(ctx, datasets)[0]
	}
	user := typed[:strings.LastIndexByte(typed, '@')+1]
	both := searchAll(ctx, func(context.Context) []string { return k.hosts(shell, user) }, datasets)
	if user != "" && len(both[1]) > 0 {
		return both[1] // POOL@SNAPSHOT
	}
	return slices.Concat(both...)
}

// searchAll runs each search and omits the results of those that take too long.
func searchAll(ctx context.Context, looks ...func(context.Context) []string) [][]string {
	over, cancel := context.WithTimeout(ctx, shellTimeout)
	defer cancel()
	found := make([][]string, len(looks))
	for i, look := range looks {
		answer := make(chan []string, 1)
		go func() {
			ctx, cancel := context.WithTimeout(over, searchTimeout)
			defer cancel()
			answer <- look(ctx)
		}()
		select {
		case found[i] = <-answer:
		case <-over.Done():
		}
	}
	return found
}

// hosts returns the hosts that ssh knows, with user in front.
func (k argKind) hosts(shell, user string) (out []string) {
	for _, h := range sshexec.KnownHosts(shell) {
		if _, err := endpoint.Parse(h + ":x"); err != nil {
			continue
		}
		if out = append(out, user+h+":"); k.alone {
			out = append(out, user+h)
		}
	}
	return out
}

// list returns the datasets of a host, or the snapshots of the named dataset, each with the prefix
// before. It validates the host's reply, because a shell will parse it.
func (k argKind) list(ctx context.Context, host, shell, before, name string) (out []string) {
	if !k.datasets {
		return nil
	}
	line := "exec zfs list -H -o name -s name -t filesystem,volume"
	dataset, _, snapshots := strings.Cut(name, "@")
	if snapshots {
		if _, err := zfs.ParseDataset(dataset); err != nil || !k.snapshots || strings.Contains(dataset, " ") {
			return nil
		}
		line = "exec zfs list -H -o name -s name -t snapshot -d 1 " + dataset
	}
	text, err := sshexec.Ask(ctx, (&opener{}).options(hosts.Address{Host: host, RSH: shell}), line)
	if err != nil {
		return nil
	}
	for name := range strings.Lines(text) {
		name = strings.TrimSuffix(name, "\n")
		if of, _, err := zfs.ParseSnapshot(name); snapshots && (err != nil || of != dataset) {
			continue
		}
		if _, err := zfs.ParseDataset(name); !snapshots && err != nil {
			continue
		}
		out = append(out, before+name)
	}
	return out
}

// completeGrants completes the verbs of --allow.
func completeGrants(cmd *cobra.Command) {
	words := []string{statusGrant}
	for _, g := range authz.AllGrants() {
		words = append(words, cobra.CompletionWithDesc(g.Verb+"=", g.Help))
	}
	_ = cmd.RegisterFlagCompletionFunc("allow", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// completeValues prevents the completion of files for flags that take no file, and completes words
// for flags with a fixed set. Flags with their own completion keep it.
func completeValues(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch kind := f.Value.Type(); {
		case strings.HasPrefix(kind, "string"): // may be a file
		case strings.Contains(kind, "|"):
			placeholder := func(word string) bool {
				return strings.ContainsFunc(word, func(r rune) bool { return r == '[' || unicode.IsUpper(r) })
			}
			words := slices.DeleteFunc(strings.Split(kind, "|"), placeholder)
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		default:
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
}

// completeChecks completes the check IDs for --skip-check.
func completeChecks(cmd *cobra.Command) {
	var ids []string
	for _, c := range preflight.Checks() {
		if preflight.Skippable(c.ID) {
			ids = append(ids, cobra.CompletionWithDesc(c.ID, c.Title))
		}
	}
	completeWords(cmd, "skip-check", ids...)
}

// completeWords completes the values of a flag.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// The flag exists, so registering cannot fail.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
