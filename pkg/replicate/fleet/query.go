package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/status"
)

// Query is a host to query.
type Query struct {
	Name    string   // name in the job file, "" if it has none
	Address string   // [user@]host
	RSH     string   // remote shell, "" = ssh
	Jobs    []string // expected jobs
	// Here returns the status of the local host. It is nil for a remote host.
	Here func() (*status.Status, error)
}

// Options holds the options of Gather.
type Options struct {
	// Ask queries a host and returns its raw answer.
	Ask func(context.Context, Query) ([]byte, error)
	// Parallel limits the number of concurrent queries. Timeout applies to each.
	Parallel int
	Timeout  time.Duration
}

// Gather queries all hosts and updates p. It returns an error only if ctx is done.
func Gather(ctx context.Context, all []Query, opts Options, p *Progress) (*Fleet, error) {
	f := &Fleet{Schema: Schema, Hosts: make([]*Host, len(all))}
	p.mu.Lock()
	p.all = len(all)
	p.mu.Unlock()
	var g errgroup.Group
	var decoding sync.Mutex
	g.SetLimit(opts.Parallel)
	for i, a := range all {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			p.begin(displayName(a))
			f.Hosts[i] = query(ctx, a, opts, &decoding)
			p.end(f.Hosts[i], displayName(a))
			return nil
		})
	}
	_ = g.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.summarize()
	return f, nil
}

// query queries one host. It locks decoding while it decodes the answer, so that only one answer
// at a time uses memory.
func query(ctx context.Context, a Query, opts Options, decoding *sync.Mutex) *Host {
	h := &Host{Host: displayName(a), Address: a.Address, Jobs: []*Job{}}
	if a.Here != nil {
		h.Address = ""
		s, err := a.Here()
		if err != nil {
			h.setError(err)
			return h
		}
		h.setStatus(s, a.Jobs)
		return h
	}
	began := time.Now()
	defer func() { h.Seconds = time.Since(began).Seconds() }()
	within, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	answer, err := opts.Ask(within, a)
	if err != nil {
		if errors.Is(within.Err(), context.DeadlineExceeded) {
			err = fault.Failf("to wait longer, add --timeout 2m", "it did not answer within %s", calendar.Duration(opts.Timeout))
		}
		h.setError(err)
		return h
	}
	decoding.Lock()
	defer decoding.Unlock()
	s, err := decode(answer)
	if err == nil && a.Name != "" && s.Host != "" && jobfile.ShortName(s.Host) != a.Name {
		err = fault.Failf(fmt.Sprintf("check its address in the job file\nif only its host name differs, let its key start: zxfer replicate status --json --host %s", a.Name), "%w: %s reports the host name %q", errOtherHost, a.Address, s.Host)
	}
	if err != nil {
		h.setError(err)
		return h
	}
	h.setStatus(s, a.Jobs)
	return h
}

// errOtherHost means that a host answered with the name of another.
var errOtherHost = errors.New("another host answered")

// displayName returns the name of a host for messages.
func displayName(a Query) string { return cmp.Or(a.Name, a.Address) }

// Progress counts the hosts queried so far. It is safe for concurrent use.
type Progress struct {
	mu                     sync.Mutex
	all, done, unreachable int
	active                 []string
}

func (p *Progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%d of %d hosts answered", p.done-p.unreachable, p.all)
	if p.unreachable > 0 {
		text += fmt.Sprintf(", %d cannot be reached", p.unreachable)
	}
	if len(p.active) > 0 {
		text += ", asking " + strings.Join(p.active[:min(len(p.active), 3)], ", ")
		if more := len(p.active) - 3; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	return text
}

func (p *Progress) begin(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active = append(p.active, name)
}

func (p *Progress) end(h *Host, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range p.active {
		if n == name {
			p.active = append(p.active[:i], p.active[i+1:]...)
			break
		}
	}
	if p.done++; h.State == status.Unreachable {
		p.unreachable++
	}
}
