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

// opener connects to the hosts of a job: the local host in this process, others through an agent
// behind the remote shell, or through their plain tools.
type opener struct {
	log func(string)
	// activity shows an activity on the host. It may be nil.
	activity func(what func() string) (done func())
	std      device.Streams // for device jobs that use standard streams
}

// Open returns the Host for an address, "" for the local host.
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
		err = fault.Refusef(fault.HintOf(err), "%w: local zxfer is %s", err, buildVersion())
	}
	if err != nil {
		return nil, err
	}
	return there, nil
}

func (o *opener) options(l hosts.Address) sshexec.Options {
	return sshexec.Options{Host: l.Host, Command: remoteShell(l.RSH), Bootstrap: !l.NoBootstrap, Release: releaseAndProtocol(), Log: o.log, Activity: o.activity}
}

// remoteShell returns the shell asked for, or the one in the environment.
func remoteShell(asked string) string { return cmp.Or(asked, os.Getenv("ZXFER_RSH")) }

// Relay opens a local listener that forwards to a loopback address of the host.
func (o *opener) Relay(ctx context.Context, l hosts.Address, address string, refused func(error)) (string, error) {
	return sshexec.ListenRelay(ctx, o.options(l), address, refused)
}
