package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

// side is the part of a job on one host: its source or a target. Its errors name job-file keys
// instead of options, because records, hooks and JSON show them.
type side struct {
	name     string // replicate.SourceSide or the target's name, as in records
	at       endpoint.Endpoint
	target   *replicate.Target // nil for the source
	transfer *replicate.Transfer
	host     *hosts.Conn
	// watch returns a context that ends when the side's pool is suspended; nil = not watched.
	watch func(context.Context) (context.Context, func())
}

// watched returns ctx, or one that ends earlier if the side's pool is suspended: a command on such a pool
// may block forever.
func (s *side) watched(ctx context.Context) (context.Context, func()) {
	if s.watch == nil {
		return ctx, func() {}
	}
	return s.watch(ctx)
}

func newSide(at *hosts.Set, name, where string, tr *replicate.Transfer) (*side, error) {
	e, err := endpoint.Parse(where)
	if err != nil {
		return nil, err
	}
	return &side{name: name, at: e, transfer: tr, host: at.Get(e.Host, &tr.Settings)}, nil
}

// targetName returns the target's name, or "" for the source.
func (s *side) targetName() string {
	if s.target == nil {
		return ""
	}
	return s.name
}

func (s *side) list(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error) {
	ctx, stop := s.watched(ctx)
	defer stop()
	l, err := s.host.List(ctx, q)
	return l, replicate.InKeys(err)
}

func (s *side) properties(ctx context.Context, names []string, properties ...string) (map[string]map[string]zfs.Property, error) {
	ctx, stop := s.watched(ctx)
	defer stop()
	found, err := s.host.Properties(ctx, names, properties)
	return found, replicate.InKeys(err)
}

// created returns when snapshots were taken, by dataset and name.
func (s *side) created(ctx context.Context, snapshots []string) (map[string]map[string]time.Time, error) {
	if len(snapshots) == 0 {
		return map[string]map[string]time.Time{}, nil
	}
	ctx, stop := s.watched(ctx)
	defer stop()
	taken, err := s.host.Created(ctx, snapshots)
	if err != nil {
		return nil, replicate.InKeys(err)
	}
	out := map[string]map[string]time.Time{}
	for full, at := range taken {
		addCreated(out, full, at)
	}
	return out, nil
}

// Run runs an operation and retries it after a lost connection. The operation must be idempotent.
func (s *side) Run(ctx context.Context, r *hosts.Request) error {
	ctx, stop := s.watched(ctx)
	defer stop()
	return replicate.InKeys(hosts.By(s.host.Retry).Run(ctx, r))
}

// place places holds.
func (s *side) place(ctx context.Context, tag string, names []string) error {
	return s.changeHolds(ctx, "hold", hosts.OpHold, hosts.Tagged{Tag: tag, Snapshots: names})
}

// release releases holds.
func (s *side) release(ctx context.Context, tag string, names []string) error {
	return s.changeHolds(ctx, "release", hosts.OpRelease, hosts.Tagged{Tag: tag, Snapshots: names})
}

func (s *side) changeHolds(ctx context.Context, what string, op hosts.Op[hosts.Tagged, hosts.None], q hosts.Tagged) error {
	if len(q.Snapshots) == 0 {
		return nil
	}
	return wrap(what, hosts.Run(ctx, s, op, q))
}

func wrap(what string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

const (
	// cloneTimeout limits the removal of clones, which continues after an interruption.
	cloneTimeout = 2 * time.Minute
	// cloneRetries is how often it is repeated while a clone is busy. The mount of a killed drill
	// ends shortly after its processes.
	cloneRetries = 6
)

func (s *side) removeClones(ctx context.Context, a zfs.DrillClones) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cloneTimeout)
	defer cancel()
	l := retry.Loop{
		Try:       func(ctx context.Context, _ int) error { return hosts.Run(ctx, s, hosts.OpDestroyDrillClones, a) },
		Retryable: func(err, _ error) bool { return errors.Is(err, &zfs.Error{Kind: zfs.Busy}) },
		Pause:     func(_ error, n int) (time.Duration, bool) { return retry.Backoff(n), n <= cloneRetries },
	}
	return l.Run(ctx)
}
