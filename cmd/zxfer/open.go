package main

import (
	"cmp"
	"context"
	"errors"
	"os"

	"zxfer/pkg/agent"
	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/netcat"
	"zxfer/pkg/sshexec"
)

// opener reaches hosts for a job: this one in the process itself, others by
// an agent behind the remote shell, or by their plain tools.
type opener struct {
	log func(string)
	// doing shows what takes a while there, may be nil.
	doing func(what func() string) (done func())
	std   device.Streams // for a device job that names them
}

// remoteShell is the one that was asked for, or the environment's.
func remoteShell(asked string) string { return cmp.Or(asked, os.Getenv("ZXFER_RSH")) }

func (o *opener) options(l hosts.Address) sshexec.Options {
	return sshexec.Options{Host: l.Host, Command: remoteShell(l.RSH), Bootstrap: !l.NoBootstrap, Release: releaseAndProtocol(), Log: o.log, Doing: o.doing}
}

// Open returns the Site of a host, "" for this one.
func (o *opener) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	if l.Host == "" {
		here := hosts.NewLocal(buildVersion(), o.log)
		here.SetStandard(o.std)
		return here, nil
	}
	if l.Plain {
		return netcat.Open(ctx, o.options(l))
	}
	c, err := sshexec.Agent(ctx, o.options(l))
	if err != nil {
		return nil, err
	}
	there, err := agent.NewRemote(ctx, l.Host, c, o.log)
	if errors.As(err, new(*agent.Mismatch)) {
		err = fault.Refusef(fault.HintOf(err), "%w: it is zxfer %s", err, buildVersion())
	}
	if err != nil {
		return nil, err
	}
	return there, nil
}

// Relay opens a listener here that leads to a loopback address of the line's host.
func (o *opener) Relay(ctx context.Context, l hosts.Address, address string, refused func(error)) (string, error) {
	return sshexec.ListenRelay(ctx, o.options(l), address, refused)
}
