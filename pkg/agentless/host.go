package agentless

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/remedy"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// Host is a host without zxfer, used through its remote shell.
type Host struct {
	cli    *cli.CLI
	name   string
	master *sshexec.Master
	shell  bool // the account runs scripts
	facts  hosts.Facts
	tools  tools
	log    func(string)
	// noise has the lines that the login of an account without a shell prints on standard error before each
	// command.
	noise map[string]bool
	// receives has the receives of earlier connections to the same host.
	receives *Receives

	beatTimeout time.Duration
	endTimeout  time.Duration // limits the tools' end after their connection, see receiveEndTimeout
}

var _ hosts.Host = (*Host)(nil)

// Open uses the host of a shared connection, which it takes over. It refuses a host without zfs. nc also
// refuses a host without a known nc.
func Open(ctx context.Context, master *sshexec.Master, nc bool) (*Host, error) {
	return open(ctx, master, func(h *Host, ctx context.Context) error {
		err := h.survey(ctx)
		if errors.Is(err, sshexec.ErrNoShell) && !nc {
			err = h.surveyWithoutShell(ctx, err)
		}
		if err != nil {
			return err
		}
		return h.checkTools(nc)
	})
}

// Reach is like Open, for scripts only. It does not check the tools.
func Reach(ctx context.Context, master *sshexec.Master) (*Host, error) {
	return open(ctx, master, (*Host).survey)
}

// surveyTimeout limits how long a host may take to describe itself.
const surveyTimeout = 150 * time.Second

func open(ctx context.Context, master *sshexec.Master, survey func(*Host, context.Context) error) (*Host, error) {
	h := newHost(master)
	late := fmt.Errorf("it did not describe itself within %s", surveyTimeout)
	ctx, cancel := context.WithTimeoutCause(budget.WithMeter(ctx, budget.MinLimit), surveyTimeout, late)
	defer cancel()
	if err := survey(h, ctx); err != nil {
		_ = h.Close() // err is more important
		return nil, err
	}
	return h, nil
}

// survey reads facts and tools with a script.
func (h *Host) survey(ctx context.Context) error {
	out, err := h.runScript(ctx, surveyScript)
	if err != nil {
		return err
	}
	h.shell = true
	h.facts, h.tools = parseSurvey(out.Stdout)
	return h.checkFacts()
}

// surveyWithoutShell does the same for an account that permits zfs commands but no shell. noShell is the
// error of the attempt to start a shell.
func (h *Host) surveyWithoutShell(ctx context.Context, noShell error) error {
	h.facts, h.tools = hosts.Facts{Backend: backend}, tools{zfs: true}
	out, err := h.runner().Run(ctx, []string{"zfs", "version"})
	if err != nil {
		return err
	}
	if out.Status == 0 { // zfs printed nothing there
		h.noise = map[string]bool{}
		for line := range strings.Lines(out.Stderr) {
			h.noise[strings.TrimSpace(line)] = true
		}
	}
	text := out.Stdout
	h.facts.ZFS = zfs.ModuleVersion(text)
	if err := h.checkFacts(); err != nil {
		return err
	}
	if out.Status != 0 || h.facts.ZFS == "" {
		return fault.Refusef(h.runner().Hint([]string{"zfs", "version"}, out.Stderr)+"\nlist the commands to permit: zxfer doctor --print-allow",
			"%w; its answer to \"zfs version\": %s", noShell, cmp.Or(firstLine(out.Stderr), firstLine(text), "nothing"))
	}
	if extra := loginText(text); extra != "" {
		return fault.Refusef(sshexec.QuietLogin,
			"%s: its login prints text, which would be part of streams: %q", h.name, extra)
	}
	quoting := make(chan error, 1)
	go func() { quoting <- h.checkQuoting(ctx) }()
	out, err = h.runner().Run(ctx, []string{"zpool", "version"})
	h.tools.zpool = out.Status == 0
	return cmp.Or(<-quoting, err)
}

// quotedWord is a word in single quotes, which no dataset has as its name.
const quotedWord = "zxfer quoted word"

// checkQuoting refuses an account that splits or changes quoted words: a command would get other names.
// zfs repeats the word in its error.
func (h *Host) checkQuoting(ctx context.Context) error {
	out, err := h.runner().Run(ctx, []string{"zfs", "list", "-H", "-o", "name", quotedWord})
	if err != nil || strings.Contains(out.Stderr, "cannot open '"+quotedWord+"'") {
		return err
	}
	return fault.Refusef("let the account's filter split a command as a POSIX shell does, such as with Python's shlex.split",
		"%s: the account does not pass a word in single quotes unchanged; its answer to %s: %s", h.name,
		zfs.CommandLine([]string{"zfs", "list", quotedWord}), cmp.Or(firstLine(out.Stderr), firstLine(out.Stdout), "nothing"))
}

// withoutNoise removes the lines that the login prints from a standard error.
func (h *Host) withoutNoise(stderr string) string {
	if len(h.noise) == 0 {
		return stderr
	}
	return strings.Join(slices.DeleteFunc(strings.Split(stderr, "\n"), func(line string) bool { return h.noise[strings.TrimSpace(line)] }), "\n")
}

// loginText returns the first line of the output of `zfs version` that is not from zfs.
func loginText(text string) string {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "zfs-") {
			return firstLine(line)
		}
	}
	return ""
}

// maxLine limits the length of a line that a message quotes, in bytes.
const maxLine = 200

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line[:min(len(line), maxLine)]
}

func newHost(master *sshexec.Master) *Host {
	h := &Host{name: master.Options.Host, log: master.Options.Log, master: master, receives: &Receives{},
		beatTimeout: sshexec.BeatTimeout, endTimeout: receiveEndTimeout}
	if h.log == nil {
		h.log = func(string) {}
	}
	h.cli = cli.NewRemote(h.runner(), h.log)
	return h
}

func (h *Host) checkFacts() error {
	if err := hosts.CheckFacts(&h.facts); err != nil {
		return fault.Failf("", "%s: invalid facts about the host: %w", h.name, err)
	}
	return nil
}

// checkTools refuses a host that lacks a tool for streams.
func (h *Host) checkTools(nc bool) error {
	_, known := dialArgs(h.tools.dialect, "", 0, true)
	switch {
	case !h.tools.zfs:
		return &zfs.Error{Kind: zfs.NoZFS, Op: zfs.OpVersion, Host: h.name,
			Detail: "zfs was not found in PATH, /usr/sbin or /sbin"}
	case !nc:
	case h.tools.nc == "":
		return fault.Refusef("apt install netcat-openbsd", "%s: {{wire nc}} requires nc, which was not found", h.name)
	case !known:
		return fault.Refusef("install a supported nc: apt install netcat-openbsd",
			"%s: unknown variant of %s, so zxfer does not know how to end it", h.name, h.tools.nc)
	}
	return nil
}

func (h *Host) runScript(ctx context.Context, script string) (cli.RunResult, error) {
	return result(sshexec.Run(ctx, h.master.Options, script))
}

// result waits for the end of a started script.
func result(s *sshexec.Script, err error) (r cli.RunResult, _ error) {
	if err != nil {
		return r, err
	}
	r.Stdout, r.Stderr, r.Status, err = s.Result()
	return r, err
}

// Shell returns the options of the open connection, to run scripts.
func (h *Host) Shell() sshexec.Options { return h.master.Options }

func (h *Host) runner() remoteRunner { return remoteRunner{h} }

// remoteRunner runs zfs commands on a Host.
type remoteRunner struct{ host *Host }

func (e remoteRunner) Host() string { return e.host.name }
func (e remoteRunner) User() string { return e.host.facts.User }

// Hint returns the change on the host that lets a refused command run, or "" if stderr shows no refusal.
func (e remoteRunner) Hint(argv []string, stderr string) string {
	before, _, isUser := strings.Cut(e.host.name, "@")
	if !isUser {
		before = "ACCOUNT"
	}
	user := cmp.Or(e.host.facts.User, before)
	for line := range strings.Lines(stderr) {
		switch {
		case strings.HasPrefix(line, "sudo: "), strings.HasPrefix(line, "Sorry, user "):
			return "permit sudo without a password; as root there: echo " +
				word(user+" ALL=(root) NOPASSWD: /sbin/zfs, /usr/sbin/zfs, /sbin/zpool, /usr/sbin/zpool") + " >/etc/sudoers.d/zxfer"
		case strings.HasPrefix(line, "doas: "):
			return "permit doas without a password; as root there: printf '%s\\n' " +
				word("permit nopass "+user+" cmd zfs") + " " + word("permit nopass "+user+" cmd zpool") + " >>/etc/doas.conf"
		}
	}
	if e.host.shell || len(argv) < 2 {
		return ""
	}
	return "permit it in the account's filter there: " + argv[0] + " " + argv[1]
}

// Limits returns limits that the kernels of the supported systems accept. A command line without a
// shell is one argument of ssh, with quotes around each name that has a space.
func (e remoteRunner) Limits() cli.RemoteLimits {
	if e.host.shell {
		return cli.RemoteLimits{MaxArgv: 256 << 10}
	}
	return cli.RemoteLimits{MaxArgv: 64 << 10, NoZpool: !e.host.tools.zpool}
}

func (remoteRunner) script(argv []string) string {
	return "exec " + zfs.CommandLine(argv) + " </dev/null"
}

// OpenSend starts a stream through the remote shell.
func (e remoteRunner) OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error) {
	return e.host.openSend(ctx, s, path{})
}

// Run runs one command. A failed connection is hosts.ErrLost. Too much output is not, because a
// retry would not help.
func (e remoteRunner) Run(ctx context.Context, argv []string) (r cli.RunResult, err error) {
	if budget.MeterOf(ctx) == nil { // for a stream, not for a request
		ctx = budget.WithMeter(ctx, hosts.MaxText)
	}
	if e.host.shell {
		r, err = e.host.runScript(ctx, e.script(argv))
	} else {
		if err = checkWords(argv); err != nil {
			return r, err
		}
		r, err = result(sshexec.RunCommand(ctx, e.host.master.Options, zfs.CommandLine(argv)))
		r.Stderr = e.host.withoutNoise(r.Stderr)
	}
	return r, asLost(ctx, err)
}

// asLost turns the error of a command or script without an outcome into hosts.ErrLost.
func asLost(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, sshexec.ErrOutput) {
		return err
	}
	return fmt.Errorf("%w: %w", hosts.ErrLost, err)
}

// checkWords refuses words that an account without a POSIX shell cannot get, because a shell or a filter
// may change them. Single quotes mean the same in all known shells, except for these characters.
func checkWords(argv []string) error {
	for _, word := range argv {
		if strings.ContainsAny(word, "'\\!\n") {
			return fmt.Errorf("it has no POSIX shell, and its command line cannot carry this word: %q", word)
		}
	}
	return nil
}

// Name returns the host as the user typed it.
func (h *Host) Name() string { return h.name }

// RTT returns 0, because it is unknown.
func (h *Host) RTT() time.Duration { return 0 }

// Close ends everything that the Host started.
func (h *Host) Close() error { return errors.Join(h.cli.Close(), h.master.Close()) }

// Share makes connections to the same host share the receives whose end is unknown.
func (h *Host) Share(r *Receives) { h.receives = r }

// SetReason records why zxfer does not run on the host, for its facts.
func (h *Host) SetReason(why string) { h.facts.NoAgent = why }

// Supports reports whether zfs(8) suffices for an operation.
func (h *Host) Supports(op hosts.Operation) bool { return op.Plain() }

// Run runs a request with zfs(8) on the host and checks its answer.
func (h *Host) Run(ctx context.Context, r *hosts.Request) error {
	if !h.Supports(r.Op) {
		return hosts.Unsupported(h.name, r.Op)
	}
	if err := r.On(budget.WithMeter(ctx, hosts.MaxText), plain{h.cli, h.facts, h.tools.groups}); err != nil {
		return fault.OnHost(err, remedy.Host{Name: h.name, Shell: h.master.Options.Command})
	}
	if err := r.CheckAnswer(); err != nil {
		return fault.Failf("", "%s: answer of %s: %w", h.name, r.Op.Name(), err)
	}
	return nil
}

// plain has the operations of a Host.
type plain struct {
	*cli.CLI
	facts  hosts.Facts
	groups []string
}

// Digest reads a stream of the host and computes its digest here, because the host has no tool for it.
func (p plain) Digest(ctx context.Context, q hosts.ContentQuery,
	progress func(transfer.Progress)) (d hosts.Digest, err error) {
	if q.KeyFile != "" {
		return d, fault.Refusef("load the key there", "without zxfer there, zxfer cannot use the key file %s", q.KeyFile)
	}
	return hosts.DigestOf(ctx, p.CLI, q, progress)
}

// Damage returns the permanent errors of a dataset and its descendants.
func (p plain) Damage(ctx context.Context, dataset string) (zfs.Damage, error) {
	d, err := p.CLI.Damage(ctx, zfs.PoolOf(dataset))
	return d.Within(dataset), err
}

// Permitted returns what zfs allow permits to the account on a dataset.
func (p plain) Permitted(ctx context.Context, dataset string) (zfs.Permitted, error) {
	return p.CLI.Permitted(ctx, dataset, p.facts.User, p.groups)
}

// Facts returns the facts read by Open or Reach.
func (p plain) Facts(context.Context) (hosts.Facts, error) { return p.facts, nil }

// HostFacts returns the same as Facts.
func (p plain) HostFacts(context.Context) (hosts.Facts, error) { return p.facts, nil }
