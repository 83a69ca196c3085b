package main

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/report"
	"zxfer/pkg/zfs"
)

// Default job file and state directory.
const (
	defaultJobFile  = "/etc/zxfer/replicate.toml"
	defaultStateDir = "/var/lib/zxfer"
)

// replicateOptions holds the flags common to the verbs of replicate.
type replicateOptions struct {
	file, stateDir string
	host           string // selects the host's jobs in the file, "" = the local host
	json           bool
}

// define declares the common flags.
func (o *replicateOptions) define(cmd *cobra.Command, withState, withJSON bool) {
	if strings.Contains(cmd.Use, "JOB") {
		cmd.ValidArgsFunction = o.completeJobs
	}
	flagGroup(cmd, "Jobs", func(f *pflag.FlagSet) {
		f.StringVarP(&o.file, "config", "c", defaultJobFile, configHelp)
		if withState {
			f.StringVar(&o.stateDir, "state-dir", defaultStateDir, stateDirHelp)
			f.StringVar(&o.host, "host", "", hostHelp)
		}
	})
	if withState {
		// The flag exists, so registering cannot fail.
		_ = cmd.RegisterFlagCompletionFunc("host", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return o.completeHosts(false, nil)
		})
	}
	if withJSON {
		flagGroup(cmd, "Output", func(f *pflag.FlagSet) { f.BoolVar(&o.json, "json", false, jsonHelp) })
	}
}

// jobs returns the named jobs of the job file, each once, or all jobs if names is empty.
func (o *replicateOptions) jobs(names []string) (*replicate.File, []*replicate.Job, error) {
	f, err := o.load()
	if err != nil {
		return nil, nil, err
	}
	if len(f.Jobs) == 0 && (f.Host == "" || len(names) > 0) {
		return nil, nil, fault.Usagef("", "%s has no job%s", o.file, hostSuffix(f))
	}
	var out []*replicate.Job
	var all []string
	for i := range f.Jobs {
		all = append(all, f.Jobs[i].Name)
		if len(names) == 0 {
			out = append(out, &f.Jobs[i])
		}
	}
	for _, n := range names {
		j := f.Find(n)
		if j == nil {
			return nil, nil, fault.Usagef("name a job of the file: "+strings.Join(all, ", "), "there is no job %q%s", n, hostSuffix(f))
		}
		if !slices.Contains(out, j) {
			out = append(out, j)
		}
	}
	return f, out, nil
}

// load reads this host's part of the job file.
func (o *replicateOptions) load() (*replicate.File, error) {
	inv, err := o.inventory()
	if err != nil {
		return nil, err
	}
	return inv.For(o.hostName())
}

// hostName returns the name of this host in the job file, or "" if unknown.
func (o *replicateOptions) hostName() string {
	if o.host != "" {
		return o.host
	}
	own, err := os.Hostname()
	if err != nil { // it matters only if the file has hosts
		return ""
	}
	return own
}

// inventory reads the job file.
func (o *replicateOptions) inventory() (*jobfile.Inventory, error) {
	text, err := os.ReadFile(o.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Usagef("zxfer replicate init writes one\nto use another file, name it: --config FILE", "there is no job file %s", o.file)
	}
	if err != nil {
		return nil, fault.Failf("name a file that you can read: --config FILE", "job file: %w", err)
	}
	return jobfile.Read(o.file, text)
}

// hostSuffix returns a suffix for error messages about one host's part of the file.
func hostSuffix(f *replicate.File) string {
	if f.Host == "" {
		return ""
	}
	return " for host " + f.Host
}

// requireJobs requires either names of jobs or --all.
func requireJobs(all *bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *all == (len(args) > 0) {
			return fault.Usagef(helpOf(cmd), "%s requires names of jobs, or --all", cmd.Name())
		}
		return nil
	}
}

// runner returns a Runner and its reporter. The caller must call EndJob on the reporter before it
// writes other output.
func (o *replicateOptions) runner(a *app) (*runner.Runner, *report.Text) {
	text := report.NewText(report.Options{Stdout: a.stdout, Stderr: a.stderr, Scheduled: true, Size: terminalSize(a.stderr)})
	at := &opener{activity: text.ActivityState}
	r := runner.New(o.stateDir, at, a.now, text.Log)
	at.log = func(message string) { r.Env.Log(message) } // r.Log may be replaced later
	r.Env.Flags, r.Agent = o.flags(), "zxfer/"+buildVersion()
	r.Env.Reporter = func(_, target string) send.Reporter { return text.Part(target) }
	return r, text
}

// flags returns the flags for a job file, state directory and host other than the defaults.
func (o *replicateOptions) flags() string {
	flags := configFlag(o.file)
	if o.stateDir != "" && o.stateDir != defaultStateDir {
		flags += " " + zfs.CommandLine([]string{"--state-dir", o.stateDir})
	}
	if o.host != "" {
		flags += " " + zfs.CommandLine([]string{"--host", o.host})
	}
	return flags
}

// configFlag returns the flag for a job file other than the default, or "".
func configFlag(file string) string {
	if file == "" || file == defaultJobFile {
		return ""
	}
	return " " + zfs.CommandLine([]string{"--config", file})
}

// completeJobs completes the jobs of the file, or hosts for status --hosts.
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

// completeHosts completes the hosts of the file and, if groups is set, its groups.
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
