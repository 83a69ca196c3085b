package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"zxfer/pkg/agent"
	"zxfer/pkg/agentless"
	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
)

// opener connects to the hosts of a job: the local host in this process, others through an agent
// behind the remote shell. It uses the zfs of a host that cannot run an agent through ssh.
type opener struct {
	log func(string)
	// activity shows an activity on the host. It may be nil.
	activity func(what func() string) (done func())
	std      device.Streams // for device jobs that use standard streams

	mu sync.Mutex
	// noAgent has the hosts that cannot run an agent.
	noAgent  map[hosts.Address]*sshexec.NoAgentError
	receives agentless.Receives
}

// Open returns the Host for an address, "" for the local host.
func (o *opener) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	if l.Host == "" {
		here := hosts.NewLocal(buildVersion(), o.log)
		here.SetStandard(o.std)
		return here, nil
	}
	shared, err := sshexec.StartMaster(ctx, o.options(l))
	if err != nil {
		return nil, err
	}
	if l.NC {
		there, err := agentless.Open(ctx, shared, true)
		if err != nil {
			return nil, err
		}
		return there, nil
	}
	o.mu.Lock()
	noAgent := o.noAgent[l]
	o.mu.Unlock()
	if noAgent == nil {
		there, err := o.openAgent(ctx, shared)
		if err == nil {
			return there, nil
		}
		if !errors.As(err, &noAgent) {
			_ = shared.Close() // err is more important
			return nil, err
		}
	}
	return o.openAgentless(ctx, l, shared, noAgent)
}

// openAgentless uses a host that cannot run an agent. It logs that once.
func (o *opener) openAgentless(ctx context.Context, l hosts.Address, shared *sshexec.Master,
	why *sshexec.NoAgentError) (hosts.Host, error) {
	there, err := agentless.Open(ctx, shared, false)
	switch {
	case err == nil:
	case fault.ClassOf(err) == fault.Refused, errors.As(err, new(*zfs.Error)):
		return nil, fmt.Errorf("%w; without zxfer there: %w", why, err)
	default: // the connection failed, which a retry may cure
		return nil, err
	}
	there.SetReason(why.Reason.Error())
	there.Share(&o.receives)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.noAgent[l] == nil {
		o.log(fmt.Sprintf("%v; using its zfs through ssh: one connection, and that host is not measured", why))
		if o.noAgent == nil {
			o.noAgent = map[hosts.Address]*sshexec.NoAgentError{}
		}
		o.noAgent[l] = why
	}
	return there, nil
}

// sharedConn is a connection to an agent. Its end ends the shared connection.
type sharedConn struct {
	*sshexec.Conn
	shared *sshexec.Master
}

func (c sharedConn) Close() error {
	defer c.shared.Close()
	return c.Conn.Close()
}

// Leave ends both connections immediately. It does not wait for the end of the shared one, which has no effect
// on the result.
func (c sharedConn) Leave() {
	c.Conn.Leave()
	go func() { _ = c.shared.Close() }()
}

func (o *opener) openAgent(ctx context.Context, shared *sshexec.Master) (hosts.Host, error) {
	c, err := sshexec.Agent(ctx, shared.Options)
	if err != nil {
		return nil, err
	}
	return o.remote(ctx, shared.Options, sharedConn{c, shared})
}

// OpenAgain logs in to a host for one more agent. Nothing shares its connection.
func (o *opener) OpenAgain(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	options := o.options(l)
	c, err := sshexec.Agent(ctx, options)
	if err != nil {
		return nil, err
	}
	return o.remote(ctx, options, c)
}

// remote returns the host whose agent answers on a connection.
func (o *opener) remote(ctx context.Context, options sshexec.Options, t agent.Transport) (hosts.Host, error) {
	there, err := agent.NewRemote(ctx, options.Host, t, o.log)
	if errors.As(err, new(*agent.Mismatch)) {
		err = fault.Refusef(fault.HintOf(err), "%w: local zxfer is %s", err, buildVersion())
	}
	if err != nil {
		return nil, err
	}
	there.Shell = options.Command
	return there, nil
}

func (o *opener) options(l hosts.Address) sshexec.Options {
	return sshexec.Options{Host: l.Host, Command: remoteShell(l.RSH), Bootstrap: !l.NoBootstrap,
		Release: releaseAndProtocol(), Log: o.log, Activity: o.activity}
}

// remoteShell returns the shell asked for, or the one in the environment.
func remoteShell(asked string) string { return cmp.Or(asked, os.Getenv("ZXFER_RSH")) }

// RemoteShell returns the remote shell command for an address, "" = ssh.
func (o *opener) RemoteShell(l hosts.Address) string { return remoteShell(l.RSH) }

// IsKnownHost reports whether ssh's files or the resolver know a host.
func (o *opener) IsKnownHost(l hosts.Address, name string) bool {
	return sshexec.IsKnownHost(context.Background(), o.RemoteShell(l), name)
}
