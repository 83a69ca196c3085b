package sshexec

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// maxSocketPath bounds the path of a connection's socket: the kernel takes 108
// bytes, of which ssh needs some for a temporary name.
const maxSocketPath = 85

// Held is a connection of ssh that is kept open, so that each script need not
// make one of its own: that takes a few hundred milliseconds, and perhaps a
// password. Another remote shell than ssh is not held.
type Held struct {
	// Options are for scripts that are to use the connection. Where sshd takes
	// no further session on it (MaxSessions), ssh makes another connection.
	Options Options

	socket string // "" where nothing is held
	script *Script
}

// Hold logs in to a host. ssh may ask for a password.
func Hold(ctx context.Context, o Options) (*Held, error) {
	h := &Held{Options: o}
	words, err := o.words()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(os.TempDir(), "zxfer-ssh-"+rand.Text())
	if !isSSH(words[0]) || len(socket) > maxSocketPath {
		return h, nil
	}
	// ssh makes it for this user alone, and removes it when it ends.
	h.socket = socket
	o.mux = []string{"-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-o", "ControlPath=" + socket}
	h.Options.mux = []string{"-o", "ControlMaster=no", "-o", "ControlPath=" + socket}
	if h.script, err = run(context.WithoutCancel(ctx), o, "while read -r beat; do :; done"); err != nil {
		return nil, err
	}
	patience := time.NewTimer(o.connectTimeout())
	defer patience.Stop()
	select {
	case <-h.script.out.ran:
		return h, nil
	case <-h.script.Done():
		_, _, _, err = h.script.Result()
	case <-ctx.Done():
		err = fmt.Errorf("%s: %w", o.Host, context.Cause(ctx))
	case <-patience.C:
		err = fmt.Errorf("%s: no shell answered within %s", o.Host, o.connectTimeout())
	}
	_ = h.Close() // what failed is known
	if err == nil {
		err = fmt.Errorf("%s: the remote shell ended", o.Host)
	}
	return nil, err
}

// Close ends the connection, and with it the scripts that use it.
func (h *Held) Close() error {
	if h.socket == "" {
		return nil
	}
	h.script.End(quitWithin)
	_ = os.Remove(h.socket) // there if ssh was killed
	return nil
}
