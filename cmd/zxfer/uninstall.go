package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"zxfer/pkg/agentless"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/unit"
	"zxfer/pkg/report"
	"zxfer/pkg/size"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

type uninstallOptions struct {
	rsh                string
	dryRun, yes, holds bool
}

func newUninstall(a *app) *cobra.Command {
	o := &uninstallOptions{}
	cmd := &cobra.Command{
		Use:   "uninstall [FLAGS] [HOST]",
		Short: "Remove the files, holds and bookmarks of zxfer from a host",
		Long: `List copied binaries, holds and bookmarks of jobs, units and lines of
authorized_keys on a host, and remove the binaries after confirmation. With
--holds, also remove holds and bookmarks, which active jobs need for incremental
sends. Job records and device journals in /var/lib/zxfer are not listed.`,
		Annotations: map[string]string{argsTitle: `  HOST  [user@]host (default: this host)`},
		Example: `  zxfer uninstall -n
      list files, holds and bookmarks on this host
  zxfer uninstall -n backup1
      list them on another host
  zxfer uninstall --holds --yes backup1
      also remove holds and bookmarks, without confirmation`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] == "" {
				return fault.Usagef(helpOf(cmd), "uninstall accepts at most one HOST")
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{alone: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), a, strings.Join(args, ""))
		},
	}
	flagGroup(cmd, "Flags", func(f *pflag.FlagSet) {
		f.BoolVarP(&o.dryRun, "dry-run", "n", false, dryRunHelp)
		f.BoolVar(&o.holds, "holds", false, "also remove holds and bookmarks of all jobs")
		f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
		f.StringVarP(&o.rsh, "rsh", "e", "", transport.RSHHelp)
	})
	return cmd
}

// inspectedHost is a host that uninstall inspects.
type inspectedHost struct {
	hosts.Host
	shell sshexec.Options
}

func (o *uninstallOptions) run(ctx context.Context, a *app, host string) (err error) {
	at, err := o.visit(ctx, a, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	left, err := at.inspect(ctx)
	if err != nil {
		return err
	}
	if err := left.show(a.stdout, o.holds); err != nil || o.dryRun {
		return err
	}
	if len(left.kept) == 0 && (!o.holds || len(left.tags)+len(left.bookmarks) == 0) {
		_, err := fmt.Fprintln(a.stdout, "there is nothing to remove")
		return err
	}
	if err := o.confirm(a); err != nil {
		return err
	}
	if o.holds {
		for _, tag := range slices.Sorted(maps.Keys(left.tags)) {
			if err := hosts.Run(ctx, at, hosts.OpRelease, hosts.Tagged{Tag: tag, Snapshots: left.tags[tag]}); err != nil {
				return err
			}
		}
		if err := hosts.Run(ctx, at, hosts.OpDestroy, left.bookmarks); err != nil {
			return err
		}
	}
	if err := sshexec.ClearCache(ctx, at.shell); err != nil {
		return err
	}
	kept, err := sshexec.ListCache(ctx, at.shell)
	for _, k := range kept {
		if k.Bytes > 0 {
			return fault.Failf("", "could not remove %s", k.Dir)
		}
	}
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, "removed")
	}
	return err
}

// visit connects to a host, "" for the local host.
func (o *uninstallOptions) visit(ctx context.Context, a *app, host string) (*inspectedHost, error) {
	log := func(line string) { _, _ = fmt.Fprintln(a.stderr, report.Line(line)) }
	if host == "" {
		here := hosts.NewLocal(buildVersion(), log)
		return &inspectedHost{here, sshexec.Options{}}, nil
	}
	if e, err := endpoint.Parse(host + ":x"); err != nil || e.Host != host {
		return nil, fault.Usagef("use the syntax of ssh: [user@]HOST", "%q is not the name of a host", host)
	}
	shared, err := sshexec.StartMaster(ctx, (&opener{log: log}).options(hosts.Address{Host: host, RSH: o.rsh}))
	if err != nil {
		return nil, err
	}
	there, err := agentless.Reach(ctx, shared)
	if err != nil {
		return nil, err
	}
	return &inspectedHost{there, there.Shell()}, nil
}

// confirm asks whether to remove what show listed.
func (o *uninstallOptions) confirm(a *app) error {
	if o.yes {
		return nil
	}
	f, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return fault.Refusef("add --yes", "nothing was removed: no terminal to ask for confirmation")
	}
	_, _ = fmt.Fprint(a.stderr, "Remove this? (yes/no) ")
	if answer, _ := bufio.NewReader(f).ReadString('\n'); strings.TrimSpace(answer) != "yes" {
		return fault.Refusef("", "nothing was removed")
	}
	return nil
}

// residue lists what zxfer left on a host.
type residue struct {
	kept      []sshexec.CacheDir
	datasets  map[string]*[2]int  // number of holds and bookmarks
	tags      map[string][]string // snapshots by hold tag
	bookmarks []string
	keys      int      // lines of authorized_keys
	units     []string // file names
	installed bool     // the host has a zxfer in its PATH
}

// inspect finds what zxfer left. It changes nothing.
func (at *inspectedHost) inspect(ctx context.Context) (*residue, error) {
	left := &residue{datasets: map[string]*[2]int{}, tags: map[string][]string{}}
	var err error
	if left.kept, err = sshexec.ListCache(ctx, at.shell); err != nil {
		return nil, err
	}
	text, err := sshexec.Ask(ctx, at.shell, `grep -E `+shellQuote(keyLinePattern)+` "$HOME/.ssh/authorized_keys" 2>/dev/null | while read -r x; do echo zxfer-key; done; `+
		listUnits(unitDir)+
		`command -v zxfer >/dev/null && echo zxfer-installed; `+
		`command -v zpool >/dev/null || exit 0; zpool list -H -o name | while read -r x; do echo "zxfer-pool $x"; done`)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		switch word, value, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "zxfer-key":
			left.keys++
		case "zxfer-unit":
			if unit.IsFile(value) {
				left.units = append(left.units, value)
			}
		case "zxfer-installed":
			left.installed = true
		case "zxfer-pool":
			if err := left.pool(ctx, at, value); err != nil {
				return nil, err
			}
		}
	}
	return left, nil
}

// listUnits returns the shell command that prints the units in a directory that install wrote.
func listUnits(dir string) string {
	return `cd ` + dir + ` 2>/dev/null && grep -lxF ` + shellQuote(unit.Marker) + ` ` + unit.Prefix + `* 2>/dev/null | while read -r x; do echo "zxfer-unit $x"; done; `
}

// pool finds the holds and bookmarks of jobs in a pool.
func (left *residue) pool(ctx context.Context, at hosts.Host, pool string) error {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return err
	}
	l, err := hosts.Call(ctx, at, hosts.OpList, hosts.ListQuery{Dataset: pool, Recursive: true, Versions: true})
	if err != nil {
		return err
	}
	count := func(dataset string, what int) {
		if left.datasets[dataset] == nil {
			left.datasets[dataset] = new([2]int)
		}
		left.datasets[dataset][what]++
	}
	for _, d := range l.Datasets {
		for _, v := range d.Versions {
			if _, ours := replicate.JobOfTag(v.Name); ours && v.Kind == zfs.Bookmark {
				left.bookmarks = append(left.bookmarks, v.In(d.Name))
				count(d.Name, 1)
			}
		}
	}
	held, err := hosts.Call(ctx, at, hosts.OpHolds, l.SnapshotNames())
	if err != nil {
		return err
	}
	for _, snapshot := range slices.Sorted(maps.Keys(held)) {
		for _, tag := range held[snapshot] {
			if _, ours := replicate.JobOfTag(tag); ours {
				left.tags[tag] = append(left.tags[tag], snapshot)
				dataset, _, _ := strings.Cut(snapshot, "@")
				count(dataset, 0)
			}
		}
	}
	return nil
}

// show prints what was found.
func (left *residue) show(w io.Writer, holds bool) error {
	var b strings.Builder
	for _, k := range left.kept {
		fmt.Fprintf(&b, "%s: %s, %s\n", report.Line(k.Dir), english.Plural(k.Builds, "build of zxfer", "builds of zxfer"), size.Text(uint64(k.Bytes)))
	}
	for _, d := range slices.Sorted(maps.Keys(left.datasets)) {
		n := left.datasets[d]
		fmt.Fprintf(&b, "%s: %s, %s of jobs", report.Line(d), english.Plural(n[0], "hold", ""), english.Plural(n[1], "bookmark", ""))
		if !holds {
			b.WriteString(", kept without --holds")
		}
		b.WriteByte('\n')
	}
	if left.keys > 0 {
		fmt.Fprintf(&b, "~/.ssh/authorized_keys: %s; to remove: sed -i -E %s ~/.ssh/authorized_keys\n",
			english.Plural(left.keys, "line for zxfer, kept", "lines for zxfer, kept"), shellquote.Join("/"+keyLinePattern+"/d"))
	}
	if len(left.units) > 0 {
		fmt.Fprintf(&b, unitDir+": %s, kept: %s; to remove: %s\n",
			english.Plural(len(left.units), "unit of jobs", "units of jobs"), strings.Join(left.units, ", "), left.removeCommand())
	}
	if b.Len() == 0 {
		b.WriteString("zxfer left no files, holds or bookmarks\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shellQuote quotes a text for the shell of sshexec.Ask, which forbids single quotes.
func shellQuote(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"` }

// removeCommand returns the command that removes the units. It works without zxfer, if the package was
// removed first.
func (left *residue) removeCommand() string {
	if left.installed {
		return "zxfer replicate uninstall"
	}
	commands := []string{"cd " + unitDir}
	if timers := slices.DeleteFunc(slices.Clone(left.units), func(name string) bool { return !unit.IsTimer(name) }); len(timers) > 0 {
		commands = append(commands, "systemctl stop "+strings.Join(timers, " "))
	}
	all := strings.Join(left.units, " ")
	commands = append(commands, "systemctl disable "+all, "rm "+all, "systemctl daemon-reload")
	return strings.Join(commands, " && ")
}
