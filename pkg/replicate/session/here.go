package session

import (
	"context"
	"net"
	"os"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
)

// OnThisHost returns the job as this host sees it. On the host of a copy, the job file of the
// source's host names this host in the target, and its source is not here.
// It looks only at the named target, "" = the only one.
func OnThisHost(ctx context.Context, j *replicate.Job, target string) (_ *replicate.Job, sourceUnknown bool) {
	from, err := endpoint.Parse(j.Source)
	if err != nil || !from.Local() {
		return j, false
	}
	here := *j
	here.Targets = append([]replicate.Target{}, j.Targets...)
	for i := range here.Targets {
		t := &here.Targets[i]
		if target != "" && t.Name != target {
			continue
		}
		if at, err := endpoint.Parse(t.To); err == nil && !at.Local() && isThisHost(ctx, at.HostName()) {
			at.Host = ""
			t.To, sourceUnknown = at.String(), true
		}
	}
	return &here, sourceUnknown
}

// lookupTimeout limits the name lookup of a target's host.
const lookupTimeout = 5 * time.Second

// isThisHost reports whether a name or address of a job file means this computer.
func isThisHost(ctx context.Context, name string) bool {
	if own, err := os.Hostname(); err == nil && (strings.EqualFold(name, own) || strings.EqualFold(name, jobfile.ShortName(own))) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, name)
	if err != nil { // an alias of the ssh configuration
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(a.IP) {
				return true
			}
		}
	}
	return false
}

// RanHere reports whether this host ran the job as it is in the job file.
func (s *Session) RanHere(j *replicate.Job) bool {
	return s.State.Place != "" || s.State.LastRun != nil && s.State.LastRun.Source == j.Source
}
