package sshexec

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// maxSocketPath limits the path of a socket. The kernel permits 108 bytes, and ssh needs some for a
// temporary name.
const maxSocketPath = 85

// Master is an ssh connection that scripts share (ControlMaster in ssh_config(5)). It saves each
// script a few hundred milliseconds and a password prompt. Remote shells other than ssh have no
// shared connection.
type Master struct {
	// Options are for scripts that use the connection. If sshd refuses another session
	// (MaxSessions), ssh opens a separate connection.
	Options Options

	socket string // "" if no connection is shared
	script *Script
}

// StartMaster connects to a host. ssh may ask for a password.
func StartMaster(ctx context.Context, o Options) (*Master, error) {
	h := &Master{Options: o}
	words, err := o.words()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(os.TempDir(), "zxfer-ssh-"+rand.Text())
	if !isSSH(words[0]) || len(socket) > maxSocketPath {
		return h, nil
	}
	// ssh creates the socket for this user alone and removes it at its end.
	h.socket = socket
	o.mux = []string{"-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-o", "ControlPath=" + socket}
	h.Options.mux = []string{"-o", "ControlMaster=no", "-o", "ControlPath=" + socket}
	if h.script, err = run(context.WithoutCancel(ctx), o, "while read -r beat; do :; done"); err != nil {
		return nil, err
	}
	timer := time.NewTimer(o.connectTimeout())
	defer timer.Stop()
	select {
	case <-h.script.out.ran:
		return h, nil
	case <-h.script.Done():
		_, _, _, err = h.script.Result()
	case <-ctx.Done():
		err = fmt.Errorf("%s: %w", o.Host, context.Cause(ctx))
	case <-timer.C:
		err = fmt.Errorf("%s: no shell answered within %s", o.Host, o.connectTimeout())
	}
	_ = h.Close() // err has the cause
	if err == nil {
		err = fmt.Errorf("%s: the remote shell ended", o.Host)
	}
	return nil, err
}

// Close closes the connection, which ends the scripts that use it.
func (h *Master) Close() error {
	if h.socket == "" {
		return nil
	}
	h.script.End(quitTimeout)
	_ = os.Remove(h.socket) // exists if ssh was killed
	return nil
}
