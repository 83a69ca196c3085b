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

// Host is a host without zxfer, used through its remote shell.
type Host struct {
	cli   *cli.CLI
	name  string
	held  *sshexec.Master
	facts hosts.Facts
	tools tools
	log   func(string)

	beatTimeout time.Duration
	endTimeout  time.Duration // limits the tools' end after their connection, see receiveEndTimeout
}

var _ hosts.Host = (*Host)(nil)

// Open connects to a host. It refuses a host without zfs or without a known nc.
func Open(ctx context.Context, o sshexec.Options) (*Host, error) {
	h, err := Reach(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := h.checkTools(); err != nil {
		_ = h.Close() // err is more important
		return nil, err
	}
	return h, nil
}

// Reach connects to a host for operations without streams. It does not check the tools.
func Reach(ctx context.Context, o sshexec.Options) (*Host, error) {
	h := &Host{name: o.Host, log: o.Log, beatTimeout: sshexec.BeatTimeout, endTimeout: receiveEndTimeout}
	if h.log == nil {
		h.log = func(string) {}
	}
	h.cli = cli.NewRemote(remoteRunner{h}, h.log)
	var err error
	if h.held, err = sshexec.StartMaster(ctx, o); err != nil {
		return nil, err
	}
	if err := h.survey(ctx); err != nil {
		_ = h.Close() // err is more important
		return nil, err
	}
	return h, nil
}

func (h *Host) survey(ctx context.Context) error {
	out, err := h.run(ctx, surveyScript)
	if err != nil {
		return err
	}
	h.facts, h.tools = parseSurvey(string(out.Stdout))
	if err := hosts.CheckFacts(&h.facts); err != nil {
		return fault.Failf("", "%s: what it says of itself cannot be: %w", h.name, err)
	}
	return nil
}

// checkTools refuses a host that lacks a tool for streams.
func (h *Host) checkTools() error {
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

func (h *Host) run(ctx context.Context, script string) (r cli.RunResult, err error) {
	s, err := sshexec.Run(ctx, h.held.Options, script)
	if err != nil {
		return r, err
	}
	r.Stdout, r.Stderr, r.Status, err = s.Result()
	return r, err
}

// Shell returns the options of the open connection, to run scripts.
func (h *Host) Shell() sshexec.Options { return h.held.Options }

// remoteRunner runs zfs commands on a Host.
type remoteRunner struct{ host *Host }

func (e remoteRunner) Host() string { return e.host.name }
func (e remoteRunner) User() string { return e.host.facts.User }

func (remoteRunner) script(argv []string) string {
	return "exec " + zfs.CommandLine(argv) + " </dev/null"
}

// Run runs one command. A failed connection is hosts.ErrLost. Too much output is not, because a
// retry would not help.
func (e remoteRunner) Run(ctx context.Context, argv []string) (cli.RunResult, error) {
	r, err := e.host.run(ctx, e.script(argv))
	if err != nil && ctx.Err() == nil && !errors.Is(err, sshexec.ErrOutput) {
		err = fmt.Errorf("%w: %w", hosts.ErrLost, err)
	}
	return r, err
}

// Name returns the host as the user typed it.
func (h *Host) Name() string { return h.name }

// RTT returns 0, because it is unknown.
func (h *Host) RTT() time.Duration { return 0 }

// Close ends everything that the Host started.
func (h *Host) Close() error { return errors.Join(h.cli.Close(), h.held.Close()) }

// Supports reports whether zfs(8) suffices for an operation.
func (h *Host) Supports(op hosts.Operation) bool { return op.Plain() }

// Run runs a request with zfs(8) on the host and checks its answer.
func (h *Host) Run(ctx context.Context, r *hosts.Request) error {
	if !h.Supports(r.Op) {
		return hosts.Unsupported(h.name, r.Op)
	}
	if err := r.On(ctx, plain{h.cli, h.facts}); err != nil {
		return err
	}
	if err := r.CheckAnswer(); err != nil {
		return fault.Failf("", "%s: answer of %s: %w", h.name, r.Op.Name(), err)
	}
	return nil
}

// plain has the operations of a Host.
type plain struct {
	*cli.CLI
	facts hosts.Facts
}

// Facts returns the facts read by Open or Reach.
func (p plain) Facts(context.Context) (hosts.Facts, error) { return p.facts, nil }

// HostFacts returns the same as Facts.
func (p plain) HostFacts(context.Context) (hosts.Facts, error) { return p.facts, nil }
