// Package netcat operates a host where zxfer cannot run, for example because of its architecture, a
// noexec home directory or a ban on uploads.
//
// Nouns:
//   - host: offers only a remote shell, zfs and an nc of a known dialect
//   - script: a shell script for one operation, run through the remote shell
//   - stream: its data, over a TCP connection from the host's nc to a local listener
//   - secret: a single-use token that nc sends first, so that the listener accepts it
//   - beat: a line that zxfer sends to a script's input to show that it is alive
//   - dialect: the option syntax of an nc implementation
//
// It does not encrypt or authenticate streams (see package transport/tcp). It does not measure the
// host, copy devices, or connect two remote hosts.
package netcat

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/sysinfo"
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
		return fault.Failf("", "%s: invalid facts about the host: %w", h.name, err)
	}
	return nil
}

// checkTools refuses a host that lacks a tool for streams.
func (h *Host) checkTools() error {
	_, known := dialArgs(h.tools.dialect, "", 0, true)
	switch {
	case !h.tools.zfs:
		return &zfs.Error{Kind: zfs.NoZFS, Op: zfs.OpVersion, Host: h.name, Detail: "zfs was not found in PATH, /usr/sbin or /sbin"}
	case h.tools.nc == "":
		return fault.Refusef("apt install netcat-openbsd", "%s: {{wire nc}} requires nc, which was not found", h.name)
	case !known:
		return fault.Refusef("install a supported nc: apt install netcat-openbsd",
			"%s: unknown variant of %s, so zxfer does not know how to end it", h.name, h.tools.nc)
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

// surveyScript prints a host's facts: lines "WORD VALUE", and after each line "help NAME" the
// help text of the nc of that name.
const surveyScript = `exec </dev/null
v="$(cat /sys/module/zfs/version 2>/dev/null)" || v="$(zfs version 2>/dev/null | sed -n "s/^zfs-kmod-//p")"
cat <<END
hostname $(uname -n)
kernel $(uname -r)
user $(id -un)
uid $(id -u)
boot $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
connection $SSH_CONNECTION
cpus $(getconf _NPROCESSORS_ONLN 2>/dev/null)
zfs $v
tool $(command -v zfs)
mbuffer $(command -v mbuffer)
END
for c in nc ncat netcat; do ! command -v $c >/dev/null || { echo "help $c"; $c -h 2>&1; }; done
exit 0`

func parseSurvey(text string) (f hosts.Facts, t tools) {
	text, helps, _ := strings.Cut(text, "\nhelp ")
	for section := range strings.SplitSeq(helps, "\nhelp ") {
		name, help, _ := strings.Cut(section, "\n")
		if dialect := sysinfo.NCDialect(help); t.nc == "" || t.dialect == sysinfo.UnknownNC && dialect != sysinfo.UnknownNC {
			t.nc, t.dialect = name, dialect
		}
	}
	for line := range strings.Lines(text) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "hostname":
			f.Hostname = value
		case "kernel":
			f.Kernel = value
		case "user":
			f.User = value
		case "uid":
			f.Root = value == "0"
		case "boot":
			f.Boot = value
		case "connection":
			if c := strings.Fields(value); len(c) == 4 {
				f.SSHPeer, f.SSHLocal = c[0], c[2]
			}
		case "cpus":
			n, _ := strconv.Atoi(value) // 0 = unknown
			f.CPUs = max(0, n)
		case "zfs":
			f.ZFS = value
		case "tool":
			t.zfs = value != ""
		case "mbuffer":
			t.mbuffer = value != ""
		}
	}
	f.Backend = "zfs command line through the remote shell"
	return f, t
}

// tools are the programs on the host that streams need.
type tools struct {
	zfs     bool
	mbuffer bool
	nc      string // command name, "" if missing
	dialect string
}
