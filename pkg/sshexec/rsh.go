// Package rsh reaches other hosts through a remote shell, ssh or what the user
// names instead: it starts zxfer's agent there, copies zxfer to a host that
// lacks it, and relays single connections.
//
// It does not speak the agent's protocol; it hands out the way to it.
package sshexec

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// Options say how a host is reached.
type Options struct {
	Host      string // as typed, may hold "user@"
	Command   string // remote shell with arguments, as a shell would read it; "" = ssh
	Bootstrap bool   // copy this binary to a host that lacks it
	// Release is what this zxfer is, as VERSION/PROTOCOL: another build of the same
	// will do. "" = only the same build will, as of one that was not released.
	Release string
	// Patience is how long the other host may say nothing before its agent
	// is there; 0 = defaultPatience.
	Patience time.Duration
	Log      func(string) // told what the remote shell and the other host say; may be nil
	// Doing shows what takes a while, until done is called; may be nil.
	Doing func(what func() string) (done func())

	places []string // of zxfers for other machines; nil = as they are installed
	own    *build   // what this zxfer copies to hosts like this one; nil = itself
	batch  bool     // nobody is asked for a password
	mux    []string // options of ssh for a shared connection, see Hold
}

// defaultConnectTimeout is longer than sshd lets a user take to log in (120 seconds,
// LoginGraceTime in sshd_config(5)): whoever types a password is not hurried.
const defaultConnectTimeout = 150 * time.Second

func (o *Options) connectTimeout() time.Duration {
	if o.Patience <= 0 {
		return defaultConnectTimeout
	}
	return o.Patience
}

func (o *Options) log(text string) {
	if o.Log != nil {
		o.Log(o.Host + ": " + text)
	}
}

// words are the remote shell as the user named it.
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

// argv is the remote shell's command line for a remote command.
func (o *Options) argv(remote string) ([]string, error) {
	words, err := o.words()
	if err != nil {
		return nil, err
	}
	if o.Host == "" || strings.HasPrefix(o.Host, "-") {
		// A remote shell would take it for an option, such as ssh's
		// -oProxyCommand, which runs what it says.
		return nil, fault.Usagef("", "%q is not the name of a host", o.Host)
	}
	if isSSH(words[0]) {
		// Options of the user come first: for ssh, the first value counts.
		// BatchMode is left alone: on a terminal, ssh may ask for a password.
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
