package sshexec

import (
	"path/filepath"
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
	ownBuild   *build   // build for hosts of the same architecture; nil = the running binary
	batch      bool     // never ask for a password
	mux        []string // ssh options for a shared connection, see StartMaster
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
		return nil, fault.Usagef("write it as in a shell, such as: ssh -p 2222", "remote shell %q cannot be read", o.Command)
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
		if o.batch {
			words = append(words, "-o", "BatchMode=yes")
		}
		words = append(words, "-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
			"-o", "ConnectTimeout=20", "-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "ClearAllForwardings=yes", "-e", "none", "--")
	}
	return append(words, o.Host, remote), nil
}

func isSSH(program string) bool { return filepath.Base(program) == "ssh" }
