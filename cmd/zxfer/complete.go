package main

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/preflight"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
)

const (
	// shellWaits is how long a shell waits for a completion at most, and lookLasts
	// how long what looks for one may run: what is too slow is not completed.
	shellWaits = 500 * time.Millisecond
	lookLasts  = 400 * time.Millisecond
)

// end is what an argument may name beside a host with a colon behind it, and a path.
type end struct {
	datasets, snapshots bool
	alone               bool // a host without a colon
}

// completeEnds completes SRC and TARGET.
func completeEnds(ends ...end) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(ends) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		kind := ends[len(args)]
		if strings.HasPrefix(typed, "/") || strings.HasPrefix(typed, ".") || typed == "" && !kind.datasets {
			return nil, cobra.ShellCompDirectiveDefault // paths are the shell's to complete
		}
		shell := ""
		if f := cmd.Flags().Lookup("rsh"); f != nil {
			shell = f.Value.String()
		}
		found := kind.find(cmd.Context(), remoteShell(shell), typed)
		found = slices.DeleteFunc(found, func(name string) bool { return !strings.HasPrefix(name, typed) })
		var directive cobra.ShellCompDirective
		if kind.datasets {
			directive |= cobra.ShellCompDirectiveNoFileComp
		}
		if slices.ContainsFunc(found, func(name string) bool { return strings.HasSuffix(name, ":") }) {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	}
}

// find is what may stand in place of what was typed, and more.
func (k end) find(ctx context.Context, shell, typed string) []string {
	e, err := endpoint.Parse(typed + "x") // there may be no name yet
	if err != nil {
		return nil
	}
	name := strings.TrimSuffix(e.Name, "x")
	before := strings.TrimSuffix(typed, name) // HOST:
	datasets := func(ctx context.Context) []string { return k.list(ctx, e.Host, shell, before, name) }
	if !e.Local() || strings.Contains(typed, "/") {
		return soon(ctx, datasets)[0]
	}
	user := typed[:strings.LastIndexByte(typed, '@')+1]
	both := soon(ctx, func(context.Context) []string { return k.hosts(shell, user) }, datasets)
	if user != "" && len(both[1]) > 0 {
		return both[1] // POOL@SNAPSHOT
	}
	return slices.Concat(both...)
}

// soon is what each look finds, nothing of one that takes too long.
func soon(ctx context.Context, looks ...func(context.Context) []string) [][]string {
	over, cancel := context.WithTimeout(ctx, shellWaits)
	defer cancel()
	found := make([][]string, len(looks))
	for i, look := range looks {
		answer := make(chan []string, 1)
		go func() {
			ctx, cancel := context.WithTimeout(over, lookLasts)
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

// hosts are those that ssh knows, for a user.
func (k end) hosts(shell, user string) (out []string) {
	for _, h := range sshexec.Hosts(shell) {
		if _, err := endpoint.Parse(h + ":x"); err != nil {
			continue
		}
		if out = append(out, user+h+":"); k.alone {
			out = append(out, user+h)
		}
	}
	return out
}

// list are the datasets of a host, or the snapshots of the one that was named,
// each behind what was typed before the name. What a host says is judged: a shell
// will read it.
func (k end) list(ctx context.Context, host, shell, before, name string) (out []string) {
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

// completeWords completes what a flag takes.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// The flag was declared: registering cannot fail.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeGrants completes what --allow takes, but for the datasets.
func completeGrants(cmd *cobra.Command) {
	words := []string{statusGrant}
	for _, verb := range authz.Verbs() {
		words = append(words, verb+"=")
	}
	_ = cmd.RegisterFlagCompletionFunc("allow", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// completeValues has shells offer no files for the values of a command's flags that are
// none, such as numbers and spans, and words where the flag takes one of a few. What has
// a completion of its own keeps it.
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
	for _, c := range cmd.Commands() {
		completeValues(c)
	}
}

// completeChecks completes the checks that --skip-check takes.
func completeChecks(cmd *cobra.Command) {
	var ids []string
	for _, c := range preflight.Checks() {
		if preflight.Skippable(c.ID) {
			ids = append(ids, cobra.CompletionWithDesc(c.ID, c.Title))
		}
	}
	completeWords(cmd, "skip-check", ids...)
}

// completeHosts completes the hosts of the file and, where they may be named, groups
// of them.
func (o *replicateOptions) completeHosts(groups bool, args []string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if inv, err := o.inventory(); err == nil {
		if names = inv.Names(); groups {
			names = append(names, inv.Groups()...)
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) })
	return slices.Compact(slices.Sorted(slices.Values(names))), cobra.ShellCompDirectiveNoFileComp
}

// completeJobs completes the jobs of the file, and what status --hosts takes.
func (o *replicateOptions) completeJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if hosts, err := cmd.Flags().GetBool("hosts"); err == nil && hosts {
		return o.completeHosts(true, args)
	}
	if f, err := o.load(); err == nil {
		for _, j := range f.Jobs {
			if !slices.Contains(args, j.Name) {
				names = append(names, j.Name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
