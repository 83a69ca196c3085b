package sshexec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// Options configure how to reach a host.
type Options struct {
	Host      string // as typed, may contain "user@"
	Command   string // remote shell with arguments, in shell syntax; "" = ssh
	Bootstrap bool   // copy this binary if the host lacks it
	// Release is this zxfer's VERSION/PROTOCOL. A different build of the same release is accepted.
	// "" accepts only the same build, as for development builds.
	Release string
	// ConnectTimeout limits how long the other host may be silent before its agent answers; 0 =
	// defaultConnectTimeout.
	ConnectTimeout time.Duration
	Log            func(string) // receives messages of the remote shell and the other host; may be nil
	// Activity shows a progress text until done is called; may be nil.
	Activity func(what func() string) (done func())

	binaryDirs []string // directories with binaries for other architectures; nil = default
	runDirs    []string // parents for the socket of a shared connection; nil = default
	ownBuild   *build   // build for hosts of the same architecture; nil = the running binary
	batch      bool     // never ask for a password
	mux        []string // ssh options for a shared connection, see StartMaster
	// detached commands use a connection that is open. They need no terminal, and run in their own session,
	// because an ssh that uses another's connection ends on ^C even if it starts with SIGINT ignored.
	detached bool
}

// defaultConnectTimeout is longer than sshd waits for a login (120 seconds, LoginGraceTime in
// sshd_config(5)), so that users have time to type a password.
const defaultConnectTimeout = 150 * time.Second

func (o *Options) connectTimeout() time.Duration {
	if o.ConnectTimeout <= 0 {
		return defaultConnectTimeout
	}
	return o.ConnectTimeout
}

func (o *Options) log(text string) {
	if o.Log != nil {
		o.Log(o.Host + ": " + text)
	}
}

// words returns the remote shell command as words.
func (o *Options) words() ([]string, error) {
	if o.Command == "" {
		return []string{"ssh"}, nil
	}
	words, err := shellquote.Split(o.Command)
	if err != nil || len(words) == 0 {
		return nil, fault.Usagef("use shell syntax, such as: ssh -p 2222", "cannot parse remote shell %q", o.Command)
	}
	return words, nil
}

// argv returns the remote shell's command line for a remote command.
func (o *Options) argv(remote string) ([]string, error) {
	words, err := o.words()
	if err != nil {
		return nil, err
	}
	if o.Host == "" || strings.HasPrefix(o.Host, "-") {
		// A remote shell would read it as an option, such as ssh's -oProxyCommand, which runs a
		// command.
		return nil, fault.Usagef("", "%q is not the name of a host", o.Host)
	}
	if isSSH(words[0]) {
		// The user's options come first, because ssh uses the first value. BatchMode is not set:
		// on a terminal, ssh may ask for a password.
		words = append(words, o.mux...)
		if o.batch || o.detached {
			words = append(words, "-o", "BatchMode=yes")
		}
		words = append(words, "-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
			"-o", "ConnectTimeout=20", "-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "ClearAllForwardings=yes", "-e", "none", "--")
	}
	if words = append(words, o.Host); remote != "" {
		words = append(words, remote)
	}
	return words, nil
}

func isSSH(program string) bool { return filepath.Base(program) == "ssh" }

const (
	maxConfig     = 1 << 20                // bytes of each ssh file
	lookupTimeout = 500 * time.Millisecond // for the resolver
)

// IsKnownHost reports whether KnownHosts or the resolver knows a name. It does not connect to the
// host.
func IsKnownHost(ctx context.Context, command, name string) bool {
	if slices.Contains(KnownHosts(command), name) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	return err == nil && len(addresses) > 0
}

// KnownHosts returns the sorted host names in ssh's configuration (or in the file that command
// names with -F) and the unhashed ones in the known hosts files. It omits patterns.
func KnownHosts(command string) []string {
	home, _ := os.UserHomeDir()
	user, system := filepath.Join(home, ".ssh"), "/etc/ssh"
	c := &config{home: home, seen: map[string]bool{}}
	if file := configFile(command); file != "" {
		c.read(file, user)
	} else {
		c.read(filepath.Join(user, "config"), user)
		c.read(filepath.Join(system, "ssh_config"), system)
	}
	out := slices.Concat(c.hosts, readKnownHosts(filepath.Join(user, "known_hosts")), readKnownHosts(filepath.Join(system, "ssh_known_hosts")))
	out = slices.DeleteFunc(out, func(h string) bool { return strings.ContainsAny(h, "*?!|[]:%") })
	slices.Sort(out)
	return slices.Compact(out)
}

// configFile returns the configuration file that a remote shell command names with -F, or "".
func configFile(command string) string {
	words, err := shellquote.Split(command)
	if i := slices.Index(words, "-F"); err == nil && i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// config collects host names from ssh's configuration.
type config struct {
	home  string
	seen  map[string]bool // files already read
	hosts []string        // arguments of Host
}

// read reads a configuration file and those that it includes. Relative includes are in dir.
//
// https://man.openbsd.org/ssh_config
func (c *config) read(file, dir string) {
	if c.seen[file] {
		return
	}
	c.seen[file] = true
	for _, words := range readLines(file) {
		switch strings.ToLower(words[0]) {
		case "host":
			c.hosts = append(c.hosts, words[1:]...)
		case "include":
			for _, pattern := range words[1:] {
				if strings.HasPrefix(pattern, "~/") {
					pattern = c.home + pattern[1:]
				}
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(dir, pattern)
				}
				files, _ := filepath.Glob(pattern) // an invalid pattern matches nothing
				for _, f := range files {
					c.read(f, dir)
				}
			}
		}
	}
}

// readKnownHosts returns the unhashed names in a known hosts file.
//
// https://man.openbsd.org/sshd#SSH_KNOWN_HOSTS_FILE_FORMAT
func readKnownHosts(file string) (out []string) {
	for _, words := range readLines(file) {
		if !strings.HasPrefix(words[0], "@") { // markers are @cert-authority and @revoked
			out = append(out, strings.Split(words[0], ",")...)
		}
	}
	return out
}

// readLines returns the words of each line of a file, without comments. It returns nil if the file
// cannot be read.
func readLines(file string) (out [][]string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, maxConfig)); lines.Scan(); {
		line := strings.ReplaceAll(lines.Text(), `"`, "")
		if key, value, ok := strings.Cut(line, "="); ok && !strings.ContainsAny(strings.TrimSpace(key), " \t,|") {
			line = key + " " + value
		}
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			out = append(out, words)
		}
	}
	return out
}

// Master is an ssh connection that the commands on a host share (ControlMaster in ssh_config(5)). It
// saves each command a few hundred milliseconds and a password prompt. Remote shells other than ssh have
// no shared connection. If the user's configuration has a ControlPath, ssh shares connections by that.
type Master struct {
	// Options are for commands that use the connection. If sshd refuses another session
	// (MaxSessions), ssh opens a separate connection.
	Options Options

	dir *socketDir // nil if no connection is shared
	end func(timeout time.Duration)
}

// socketPoll is how often a Master looks for ssh's socket.
const socketPoll = 5 * time.Millisecond

// StartMaster connects to a host. ssh may ask for a password. The shared connection runs no command, so that
// it needs no shell there, and ends with this process even if a command on it hangs.
func StartMaster(ctx context.Context, o Options) (*Master, error) {
	h := &Master{Options: o}
	words, err := o.words()
	if err != nil || !isSSH(words[0]) {
		return h, err
	}
	if o.hasControlPath(ctx) {
		h.Options.detached = o.hasMaster(ctx)
		return h, nil
	}
	if h.dir = newSocketDir(o.runDirs); h.dir == nil {
		return h, nil
	}
	path := "ControlPath=" + h.dir.socket()
	h.Options.mux, h.Options.detached = []string{"-o", "ControlMaster=no", "-o", path}, true
	o.mux = []string{"-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-o", path, "-N"}
	p, err := o.start(untilInputEnds(h.dir.cleanup()), "", &tail{log: o.log, maxLines: tailLines, hold: true}, h.dir.dir, h.dir.parent)
	if err != nil {
		h.dir.remove()
		return nil, err
	}
	h.end = func(timeout time.Duration) { _ = p.shutdown(timeout) }
	look := time.NewTicker(socketPoll)
	defer look.Stop()
	timer := time.NewTimer(o.connectTimeout())
	defer timer.Stop()
	for {
		select {
		case <-look.C:
			if h.dir.hasSocket() {
				p.stderr.release()
				return h, nil
			}
			continue
		case <-p.waited:
			err = p.outcome(true)
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timer.C:
			err = fmt.Errorf("no login within %s", o.connectTimeout())
		}
		_ = h.Close() // err has the cause
		if err == nil {
			err = errors.New("the remote shell ended")
		}
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
}

const (
	// configTimeout limits `ssh -G`, which may run commands of the user's configuration and ask a DNS server.
	configTimeout = 10 * time.Second
	// exitTimeout limits `ssh -O`. A stopped ssh does not answer.
	exitTimeout = 2 * time.Second
)

// hasControlPath reports whether the user's configuration of ssh sets a ControlPath for the host.
func (o *Options) hasControlPath(ctx context.Context) bool {
	// Without an answer, ssh itself reports what is wrong.
	text, _ := o.withoutLogin(ctx, configTimeout, "-G")
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(line, "controlpath "); ok && strings.TrimSpace(path) != "none" {
			return true
		}
	}
	return false
}

// hasMaster reports whether the connection that the user's configuration shares is open.
func (o *Options) hasMaster(ctx context.Context) bool {
	_, err := o.withoutLogin(ctx, exitTimeout, "-O", "check")
	return err == nil
}

// withoutLogin runs ssh with flags that need no login, and returns its output.
func (o *Options) withoutLogin(ctx context.Context, timeout time.Duration, flags ...string) (string, error) {
	argv, err := o.argv("")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	argv = slices.Insert(argv, len(argv)-2, flags...) // before "--" and the host
	text, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	return string(text), err
}

// Close closes the connection, which ends the scripts that use it.
func (h *Master) Close() error {
	if h.dir == nil {
		return nil
	}
	h.end(quitTimeout)
	if h.dir.hasSocket() { // the shell was killed, and perhaps ssh was not
		_, _ = h.Options.withoutLogin(context.Background(), exitTimeout, "-O", "exit")
	}
	h.dir.remove()
	return nil
}
