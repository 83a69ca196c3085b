package main

import (
	"context"
	"io"

	"zxfer/pkg/agent"
	"zxfer/pkg/netcat"
	"zxfer/pkg/rsh"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
)

// opener reaches hosts for a job: this one in the process itself, others by
// an agent behind the remote shell, or by their plain tools.
type opener struct {
	rsh       string
	bootstrap bool
	plain     bool // other hosts are used without zxfer (wire nc)
	log       func(string)
	// stdin and stdout are for a device job that names them; else nil.
	stdin  io.Reader
	stdout io.Writer
}

func newOpener(w *way.Way, log func(string)) *opener {
	return &opener{rsh: remoteShell(w), bootstrap: !w.NoBootstrap, plain: w.Wire == way.NC, log: log}
}

func (o *opener) options(host string) rsh.Options {
	return rsh.Options{Host: host, Command: o.rsh, Bootstrap: o.bootstrap, Log: o.log}
}

// Open returns the Site of a host, "" for this one.
func (o *opener) Open(ctx context.Context, host string) (site.Site, error) {
	if host == "" {
		l := site.NewLocal(buildVersion(), o.log)
		l.SetStandard(o.stdin, o.stdout)
		return l, nil
	}
	if o.plain {
		return netcat.Open(ctx, o.options(host))
	}
	c, err := rsh.Agent(ctx, o.options(host))
	if err != nil {
		return nil, err
	}
	return agent.NewRemote(ctx, host, c, o.log)
}

// Relay opens a listener here that leads to a loopback address of host.
func (o *opener) Relay(ctx context.Context, host, address string) (string, error) {
	return rsh.ListenRelay(ctx, o.options(host), address)
}
