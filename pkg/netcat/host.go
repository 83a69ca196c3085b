// Package netcat is the Site of a host where zxfer cannot run, for another
// architecture, a noexec home or a ban on uploads: only a remote shell, zfs and
// an nc of a known dialect are there. Every operation is a script of its own
// through the remote shell; streams go over a TCP connection that the host's nc
// makes to a listener here, which takes it by a secret that is good once.
//
// It does not encrypt or authenticate the bytes of a stream (see package wire),
// does not measure, does no devices, and joins no two other hosts.
package netcat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// Host is such a host.
type Host struct {
	hosts.Datasets
	cli   *cli.CLI
	name  string
	held  *sshexec.Held
	facts hosts.Facts
	tools tools
	log   func(string)

	silence time.Duration // see dialer
	ending  time.Duration // limit for the tools to end after their connection, see endWithin
}

var _ hosts.Host = (*Host)(nil)

// Open looks at a host. It refuses one without zfs or without an nc that it
// knows.
func Open(ctx context.Context, o sshexec.Options) (*Host, error) {
	h, err := Reach(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := h.complete(); err != nil {
		_ = h.Close() // it is of no use
		return nil, err
	}
	return h, nil
}

// Reach looks at a host, for what needs no stream: what it lacks is not asked for.
func Reach(ctx context.Context, o sshexec.Options) (*Host, error) {
	h := &Host{name: o.Host, log: o.Log, silence: sshexec.BeatTimeout, ending: endWithin}
	if h.log == nil {
		h.log = func(string) {}
	}
	h.cli = cli.NewElsewhere(elsewhere{h}, h.log)
	h.Datasets = h.cli
	var err error
	if h.held, err = sshexec.Hold(ctx, o); err != nil {
		return nil, err
	}
	if err := h.look(ctx); err != nil {
		_ = h.Close() // it is of no use
		return nil, err
	}
	return h, nil
}

// Shell is the way to the host that was made, for scripts.
func (h *Host) Shell() sshexec.Options { return h.held.Options }

// look surveys the host.
func (h *Host) look(ctx context.Context) error {
	out, err := h.run(ctx, survey)
	if err != nil {
		return err
	}
	h.facts, h.tools = parseSurvey(string(out.Stdout))
	if err := hosts.CheckFacts(&h.facts); err != nil {
		return fault.Failf("", "%s: what it says of itself cannot be: %w", h.name, err)
	}
	return nil
}

// complete refuses a host without what a stream needs.
func (h *Host) complete() error {
	_, known := dialArgs(h.tools.dialect, "", 0, true)
	switch {
	case !h.tools.zfs:
		return &zfs.Error{Kind: zfs.NoZFS, Op: zfs.OpVersion, Host: h.name, Detail: "zfs was not found on PATH, in /usr/sbin and /sbin"}
	case h.tools.nc == "":
		return fault.Refusef("install one: apt install netcat-openbsd", "%s: nc was not found, which {{wire nc}} needs", h.name)
	case !known:
		return fault.Refusef("install one that is known: apt install netcat-openbsd",
			"%s: its %s is of no dialect that zxfer knows, so how it ends is not known", h.name, h.tools.nc)
	}
	return nil
}

// elsewhere runs a Host's commands.
type elsewhere struct{ host *Host }

func (e elsewhere) Host() string { return e.host.name }
func (e elsewhere) User() string { return e.host.facts.User }

// script is one command.
func (elsewhere) script(argv []string) string { return "exec " + zfs.CommandLine(argv) + " </dev/null" }

// Run runs one command. That the way to it failed is site.ErrLost, but not that more
// was said than is read: it would be again.
func (e elsewhere) Run(ctx context.Context, argv []string) (cli.Ran, error) {
	r, err := e.host.run(ctx, e.script(argv))
	if err != nil && ctx.Err() == nil && !errors.Is(err, sshexec.ErrOutput) {
		err = fmt.Errorf("%w: %w", hosts.ErrLost, err)
	}
	return r, err
}

func (h *Host) run(ctx context.Context, script string) (r cli.Ran, err error) {
	s, err := sshexec.Run(ctx, h.held.Options, script)
	if err != nil {
		return r, err
	}
	r.Stdout, r.Stderr, r.Status, err = s.Result()
	return r, err
}

// Name is the host as it was typed.
func (h *Host) Name() string { return h.name }

// RTT is 0: it is not known.
func (h *Host) RTT() time.Duration { return 0 }

// Close ends everything that the Host started.
func (h *Host) Close() error { return errors.Join(h.cli.Close(), h.held.Close()) }

// Facts returns what Open saw.
func (h *Host) Facts(context.Context) (hosts.Facts, error) { return h.facts, nil }

// HostFacts is Facts.
func (h *Host) HostFacts(ctx context.Context) (hosts.Facts, error) { return h.Facts(ctx) }

// List surveys a dataset.
func (h *Host) List(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error) {
	l, err := h.cli.List(ctx, q)
	if err == nil {
		err = h.checked("list", hosts.CheckListing(q, &l))
	}
	return l, err
}

// Properties reads properties by name.
func (h *Host) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	m, err := h.cli.Properties(ctx, names, properties)
	if err == nil {
		err = h.checked("get", hosts.CheckProperties(names, properties, m))
	}
	return m, err
}

// Holds lists the tags of holds.
func (h *Host) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	m, err := h.cli.Holds(ctx, snapshots)
	if err == nil {
		err = h.checked("holds", hosts.CheckHolds(snapshots, m))
	}
	return m, err
}

// checked is the error of a zfs that answers something else than was asked.
func (h *Host) checked(op string, err error) error {
	if err == nil {
		return nil
	}
	return fault.Failf("", "%s: output of zfs %s: %w", h.name, op, err)
}
