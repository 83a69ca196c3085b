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

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/probe"
	"zxfer/pkg/rsh"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsexec"
)

// Host is such a host.
type Host struct {
	site.Datasets
	cli   *zfsexec.CLI
	name  string
	held  *rsh.Held
	facts site.Facts
	tools tools
	log   func(string)

	silence time.Duration // see dialer
}

var _ site.Site = (*Host)(nil)

// Open looks at a host. It refuses one without zfs or without an nc that it
// knows.
func Open(ctx context.Context, o rsh.Options) (*Host, error) {
	h := &Host{name: o.Host, log: o.Log, silence: rsh.BeatTimeout}
	if h.log == nil {
		h.log = func(string) {}
	}
	h.cli = zfsexec.NewElsewhere(elsewhere{h}, h.log)
	h.Datasets = h.cli
	var err error
	if h.held, err = rsh.Hold(ctx, o); err != nil {
		return nil, err
	}
	if err := h.look(ctx); err != nil {
		_ = h.Close() // it is of no use
		return nil, err
	}
	return h, nil
}

// look surveys the host and refuses one without what a stream needs.
func (h *Host) look(ctx context.Context) error {
	out, err := h.run(ctx, survey)
	if err != nil {
		return err
	}
	h.facts, h.tools = parseSurvey(string(out.Stdout))
	_, known := dialArgs(h.tools.dialect, "", 0, true)
	switch {
	case !h.tools.zfs:
		return &zfs.Error{Kind: zfs.NoZFS, Op: zfs.OpVersion, Host: h.name, Detail: "zfs was not found on PATH, in /usr/sbin and /sbin"}
	case h.tools.nc == "":
		return fault.Refusef("install one: apt install netcat-openbsd", "%s: nc was not found, which --wire nc needs", h.name)
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

// Run runs one command. That the way to it failed is site.ErrLost.
func (e elsewhere) Run(ctx context.Context, argv []string) (zfsexec.Ran, error) {
	r, err := e.host.run(ctx, e.script(argv))
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", site.ErrLost, err)
	}
	return r, err
}

func (h *Host) run(ctx context.Context, script string) (r zfsexec.Ran, err error) {
	s, err := rsh.Run(ctx, h.held.Options, script)
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
func (h *Host) Facts(context.Context) (site.Facts, error) { return h.facts, nil }

// HostFacts is Facts.
func (h *Host) HostFacts(ctx context.Context) (site.Facts, error) { return h.Facts(ctx) }

// List surveys a dataset.
func (h *Host) List(ctx context.Context, q site.ListQuery) (zfs.Listing, error) {
	l, err := h.cli.List(ctx, q)
	if err == nil {
		err = h.checked("list", site.CheckListing(q, &l))
	}
	return l, err
}

// Properties reads properties by name.
func (h *Host) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	m, err := h.cli.Properties(ctx, names, properties)
	if err == nil {
		err = h.checked("get", site.CheckProperties(names, properties, m))
	}
	return m, err
}

// Holds lists the tags of holds.
func (h *Host) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	m, err := h.cli.Holds(ctx, snapshots)
	if err == nil {
		err = h.checked("holds", site.CheckHolds(snapshots, m))
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

// without is the refusal of what takes a zxfer at the other end.
func (h *Host) without(what string) error {
	return fault.Refusef("choose another wire, for which zxfer runs there", "%s: --wire nc cannot %s", h.name, what)
}

// Digest is refused: the stream would have to come here.
func (h *Host) Digest(context.Context, site.ContentQuery) (site.Digest, error) {
	return site.Digest{}, h.without("compute digests")
}

// InspectDevice is refused.
func (h *Host) InspectDevice(context.Context, string) (device.Facts, error) {
	return device.Facts{}, h.without("copy devices")
}

// DeviceState is refused.
func (h *Host) DeviceState(context.Context, device.Task) (device.State, error) {
	return device.State{}, h.without("copy devices")
}

// DigestDevice is refused.
func (h *Host) DigestDevice(context.Context, device.DigestQuery, func(transfer.Progress)) (device.Digest, error) {
	return device.Digest{}, h.without("copy devices")
}

// Offer is refused: this host listens.
func (h *Host) Offer(context.Context, wire.Offer) (wire.Ticket, error) {
	return wire.Ticket{}, h.without("listen there")
}

// Transfer is refused: OpenFrom and OpenTo give its ends to this process.
func (h *Host) Transfer(context.Context, site.Task, func(transfer.Progress)) (site.Result, error) {
	return site.Result{}, h.without("move a stream between two other hosts")
}

// Capture is refused.
func (h *Host) Capture(context.Context, bool) ([]byte, error) {
	return nil, h.without("capture the host's facts")
}

// Measure is refused.
func (h *Host) Measure(context.Context, probe.Request) (probe.Ceiling, error) {
	return probe.Ceiling{}, h.without("measure")
}
