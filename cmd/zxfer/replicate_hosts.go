package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
	"zxfer/pkg/report/html"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/transport"
)

// statusCommand is the command that queries another host, and the forced command of a status key.
const statusCommand = "replicate status --json"

// hostsOptions holds the flags for querying many hosts.
type hostsOptions struct {
	*replicateOptions
	hosts    bool
	rsh      string
	parallel int
	timeout  time.Duration
}

func (o *hostsOptions) define(cmd *cobra.Command) {
	o.parallel, o.timeout = 16, 30*time.Second
	flagGroup(cmd, "Many hosts", func(f *pflag.FlagSet) {
		f.BoolVar(&o.hosts, "hosts", false, "query other hosts by ssh: all, or those named")
		f.VarP(option.Count(&o.parallel, 1, 256), "parallel", "j", "query `N` hosts concurrently")
		f.DurationVar(&o.timeout, "timeout", o.timeout, "wait at most `DURATION` for a host")
		f.StringVarP(&o.rsh, "rsh", "e", "", transport.RSHHelp)
	})
}

// check refuses flags that have no effect.
func (o *hostsOptions) check(flags *pflag.FlagSet) error {
	if o.hosts {
		if o.timeout <= 0 {
			return fault.Usagef("use --timeout 30s", "--timeout %s: must be positive", o.timeout)
		}
		return nil
	}
	return refuseIneffective(flags, "without --hosts", "parallel", "timeout", "rsh")
}

func (o *hostsOptions) nagios(ctx context.Context, a *app, names []string) error {
	f, err := o.gather(ctx, a, names)
	if err != nil {
		return nagiosUnknown(a, err)
	}
	return pluginExit(report.NagiosHosts(a.stdout, f))
}

// gather queries the selected hosts.
func (o *hostsOptions) gather(ctx context.Context, a *app, names []string) (*fleet.Fleet, error) {
	all, notAsked, err := o.selectHosts(a, names)
	if err != nil {
		return nil, err
	}
	text := report.NewText(report.Options{Stdout: a.stdout, Stderr: a.stderr, Scheduled: true, Size: terminalSize(a.stderr)})
	defer startLive(text)()
	p := &fleet.Progress{}
	done := text.ActivityState(p.String)
	f, err := fleet.Gather(ctx, all, fleet.Options{Ask: o.ask, Parallel: o.parallel, Timeout: o.timeout}, p)
	done()
	text.EndJob()
	if err != nil {
		return nil, err
	}
	f.NotAsked = notAsked
	return f, nil
}

// ask queries one host.
func (o *hostsOptions) ask(ctx context.Context, a fleet.Query) ([]byte, error) {
	shell := a.RSH
	if shell == "" {
		shell = remoteShell(o.rsh)
	}
	return sshexec.Output(ctx, sshexec.Options{Host: a.Address, Command: shell}, "exec zxfer "+statusCommand, fleet.MaxAnswer)
}

// selectHosts returns the hosts with these names: hosts and groups of the job file, or addresses.
// Without names it returns all hosts of the file. notAsked lists selected host patterns, whose
// names are unknown.
func (o *hostsOptions) selectHosts(a *app, names []string) (all []fleet.Query, notAsked []string, err error) {
	inv := &jobfile.Inventory{}
	if _, err := os.Stat(o.file); len(names) == 0 || !errors.Is(err, os.ErrNotExist) { // without a job file, names are addresses
		if inv, err = o.inventory(); err != nil {
			return nil, nil, err
		}
	}
	if len(names) == 0 {
		all = o.knownHosts(a, inv, inv.Names())
		if notAsked = inv.Patterns(); len(all) == 0 {
			return nil, nil, fault.Usagef("zxfer replicate status --hosts root@web1 root@web2", "%s has no [[host]] and no remote target", o.file)
		}
		return all, notAsked, nil
	}
	seen := map[string]bool{}
	for _, n := range names {
		for _, n := range strings.Split(n, ",") {
			more, patterns, found := inv.Resolve(n)
			add := o.knownHosts(a, inv, more)
			if notAsked = append(notAsked, patterns...); !found {
				if e, err := endpoint.Parse(n + ":x"); err != nil || e.Local() {
					return nil, nil, fault.Usagef("name a host or group of the job file, or [user@]host", "%q is not a host", n)
				}
				add = []fleet.Query{{Address: n}}
			}
			all = append(all, slices.DeleteFunc(add, func(x fleet.Query) bool {
				was := seen[x.Name+"\x00"+x.Address]
				seen[x.Name+"\x00"+x.Address] = true
				return was
			})...)
		}
	}
	return all, notAsked, nil
}

// knownHosts returns hosts of the job file. The local host is read directly.
func (o *hostsOptions) knownHosts(a *app, inv *jobfile.Inventory, names []string) (all []fleet.Query) {
	for _, n := range names {
		x := fleet.Query{Name: n, Jobs: inv.JobsOf(n)}
		x.Address, x.RSH = inv.AddressOf(n)
		if n == jobfile.ShortName(o.hostName()) {
			x.Here = func() (*status.Status, error) { return o.replicateOptions.status(a, nil) }
		}
		all = append(all, x)
	}
	return all
}

func (o *hostsOptions) status(ctx context.Context, a *app, names []string, short bool, htmlFile string) error {
	f, err := o.gather(ctx, a, names)
	if err != nil {
		return err
	}
	wrong := f.Err()
	if short && o.json {
		f.Shorten()
	}
	switch {
	case htmlFile != "":
		err = writeHTML(a, htmlFile, func() ([]byte, error) { return html.Hosts(about(a), f) })
	case o.json:
		err = writeJSON(a.stdout, f)
	default:
		err = report.HostsText(a.stdout, f, short)
	}
	if err == nil && wrong != nil {
		return &reportedError{wrong}
	}
	return err
}
