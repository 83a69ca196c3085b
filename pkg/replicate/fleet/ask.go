package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
)

// Asked is a host to query.
type Asked struct {
	Name    string   // name in the job file, "" if it has none
	Address string   // [user@]host
	RSH     string   // remote shell, "" = ssh
	Jobs    []string // expected jobs
	// Here returns the status of the local host. It is nil for a remote host.
	Here func() (*runner.Status, error)
}

// How holds the options of Gather.
type How struct {
	// Ask queries a host and returns its raw answer.
	Ask func(context.Context, Asked) ([]byte, error)
	// AtOnce limits the number of concurrent queries. Patience is the timeout of each.
	AtOnce   int
	Patience time.Duration
}

// Progress counts the hosts queried so far. It is safe for concurrent use.
type Progress struct {
	mu             sync.Mutex
	all, done, bad int
	under          []string
}

func (p *Progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%d of %d hosts answered", p.done-p.bad, p.all)
	if p.bad > 0 {
		text += fmt.Sprintf(", %d cannot be reached", p.bad)
	}
	if len(p.under) > 0 {
		text += ", asking " + strings.Join(p.under[:min(len(p.under), 3)], ", ")
		if more := len(p.under) - 3; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	return text
}

func (p *Progress) begin(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.under = append(p.under, name)
}

func (p *Progress) end(h *Host, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range p.under {
		if n == name {
			p.under = append(p.under[:i], p.under[i+1:]...)
			break
		}
	}
	if p.done++; h.State == Unreachable {
		p.bad++
	}
}

// Gather queries all hosts and updates p. It returns an error only if ctx is done.
func Gather(ctx context.Context, all []Asked, how How, p *Progress) (*Fleet, error) {
	f := &Fleet{Schema: Schema, Hosts: make([]*Host, len(all))}
	p.mu.Lock()
	p.all = len(all)
	p.mu.Unlock()
	var g errgroup.Group
	var judging sync.Mutex
	g.SetLimit(how.AtOnce)
	for i, a := range all {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			p.begin(known(a))
			f.Hosts[i] = ask(ctx, a, how, &judging)
			p.end(f.Hosts[i], known(a))
			return nil
		})
	}
	_ = g.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.sum()
	return f, nil
}

// ask queries one host. It locks judging while it decodes the answer, so that only one answer at a
// time uses memory.
func ask(ctx context.Context, a Asked, how How, judging *sync.Mutex) *Host {
	h := &Host{Host: known(a), Address: a.Address, Jobs: []*Job{}}
	if a.Here != nil {
		h.Address = ""
		s, err := a.Here()
		if err != nil {
			h.silent(err)
			return h
		}
		h.answered(s, a.Jobs)
		return h
	}
	began := time.Now()
	defer func() { h.Seconds = time.Since(began).Seconds() }()
	within, cancel := context.WithTimeout(ctx, how.Patience)
	defer cancel()
	answer, err := how.Ask(within, a)
	if err != nil {
		if errors.Is(within.Err(), context.DeadlineExceeded) {
			err = fault.Failf("wait longer: --timeout 2m", "it did not answer within %s", replicate.Duration(how.Patience))
		}
		h.silent(err)
		return h
	}
	judging.Lock()
	defer judging.Unlock()
	s, err := judge(answer)
	if err == nil && a.Name != "" && s.Host != "" && replicate.ShortName(s.Host) != a.Name {
		err = fault.Failf(fmt.Sprintf("look at its address in the job file; where only its own name is another, its key is to start: zxfer replicate status --json --host %s", a.Name), "%w: %s says that it is %q", errAnother, a.Address, s.Host)
	}
	if err != nil {
		h.silent(err)
		return h
	}
	h.answered(s, a.Jobs)
	return h
}
