package agentless

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/transport/tcp"
)

// acceptTimeout is how long an accepted connection may wait for its handshake after the script ended.
const acceptTimeout = 2 * time.Second

// openNC starts a script whose nc dials in, and waits for its connection.
func (h *Host) openNC(ctx context.Context, path path, name string, argv []string, sends bool) (f *command, err error) {
	l, err := tcp.ListenUnauthenticated(ctx, *path.nc, h.log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = l.Close() // no caller will
		}
	}()
	address, port, err := splitAddress(l.Address())
	if err != nil {
		return nil, err
	}
	args, ok := dialArgs(h.tools.dialect, address, port, sends)
	if !ok {
		return nil, fmt.Errorf("%s: unknown variant of nc %q", h.name, h.tools.dialect)
	}
	d := dialer{nc: append([]string{h.tools.nc}, args...), secret: l.Secret(), beatTimeout: h.beatTimeout}
	if h.tools.mbuffer {
		d.buffer = path.buffer
	}
	text := d.receive(argv)
	if sends {
		text = d.send(argv)
	}
	script, err := sshexec.OpenPipe(ctx, h.master.Options, text)
	if err != nil {
		return nil, err
	}
	script.Discard()
	script.KeepAlive()
	f = &command{host: h, name: name, sends: sends, tool: h.tools.nc, process: script}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-script.Done():
			// A short stream may end before its connection is accepted.
			select {
			case <-time.After(acceptTimeout):
			case <-waiting.Done():
			}
			stop()
		case <-waiting.Done():
		}
	}()
	if f.conn, err = l.Accept(waiting); err == nil {
		return f, nil
	}
	script.End(sendEndTimeout)
	if ctx.Err() != nil || errors.Is(err, tcp.ErrNoPeer) {
		return nil, err
	}
	stderr, _, lost := script.Result()
	if lost != nil {
		return nil, f.cutError(lost)
	}
	return nil, fault.Failf("open ports in the firewall and name them: {{port-range LOW-HIGH}}\nor omit {{wire}}",
		"%s: %s could not connect to %s: %s", h.name, h.tools.nc, l.Address(), stderrText(stderr))
}

func splitAddress(s string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	port, err = net.LookupPort("tcp", text)
	return host, port, err
}
