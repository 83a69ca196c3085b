package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

// Side is the part of a job on one host: its source or a target. Its errors name job-file keys
// instead of options, because records, hooks and JSON show them.
type Side struct {
	Name     string // replicate.SourceSide or the target's name, as in records
	At       endpoint.Endpoint
	Target   *replicate.Target // nil for the source
	Transfer *replicate.Transfer
	Host     *hosts.Conn
	// Watch returns a context that ends when the side's pool is suspended; nil = not watched.
	Watch func(context.Context) (context.Context, func())
}

// Watched returns ctx, or one that ends earlier if the side's pool is suspended: a command on such a pool
// may block forever.
func (s *Side) Watched(ctx context.Context) (context.Context, func()) {
	if s.Watch == nil {
		return ctx, func() {}
	}
	return s.Watch(ctx)
}

// NewSide returns the side of a job at an address of the job file. It does not connect.
func NewSide(at *hosts.Set, name, where string, tr *replicate.Transfer) (*Side, error) {
	e, err := endpoint.Parse(where)
	if err != nil {
		return nil, err
	}
	return &Side{Name: name, At: e, Transfer: tr, Host: at.Get(e.Host, &tr.Settings)}, nil
}

// TargetName returns the target's name, or "" for the source.
func (s *Side) TargetName() string {
	if s.Target == nil {
		return ""
	}
	return s.Name
}

// List lists datasets.
func (s *Side) List(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error) {
	ctx, stop := s.Watched(ctx)
	defer stop()
	l, err := s.Host.List(ctx, q)
	return l, replicate.InKeys(err)
}

// Properties returns properties by dataset or snapshot, and by name. A name that does not exist has no entry.
func (s *Side) Properties(ctx context.Context, names []string, properties ...string) (map[string]map[string]zfs.Property, error) {
	ctx, stop := s.Watched(ctx)
	defer stop()
	found, err := s.Host.Properties(ctx, names, properties)
	return found, replicate.InKeys(err)
}

// Created returns when snapshots were taken, by dataset and name.
func (s *Side) Created(ctx context.Context, snapshots []string) (map[string]map[string]time.Time, error) {
	if len(snapshots) == 0 {
		return map[string]map[string]time.Time{}, nil
	}
	ctx, stop := s.Watched(ctx)
	defer stop()
	taken, err := s.Host.Created(ctx, snapshots)
	if err != nil {
		return nil, replicate.InKeys(err)
	}
	out := map[string]map[string]time.Time{}
	for full, at := range taken {
		AddCreated(out, full, at)
	}
	return out, nil
}

// AddCreated adds the creation time of a snapshot to a map by dataset and name.
func AddCreated(to map[string]map[string]time.Time, full string, at time.Time) {
	dataset, name, _ := strings.Cut(full, "@")
	if to[dataset] == nil {
		to[dataset] = map[string]time.Time{}
	}
	to[dataset][name] = at
}

// Grants returns the policy of the key that the side's host serves, or nil if it is not restricted or
// unknown.
func (s *Side) Grants(ctx context.Context) *authz.Policy {
	f, err := s.Host.Facts(ctx) // the preview and the run report the error
	if err != nil || len(f.Grants) == 0 {
		return nil
	}
	p, err := authz.ParseFlags(f.Grants)
	if err != nil {
		return nil // from a host that lies
	}
	return p
}

// Run runs an operation and retries it after a lost connection. The operation must be idempotent.
func (s *Side) Run(ctx context.Context, r *hosts.Request) error {
	ctx, stop := s.Watched(ctx)
	defer stop()
	return replicate.InKeys(hosts.By(s.Host.Retry).Run(ctx, r))
}

// Place places holds.
func (s *Side) Place(ctx context.Context, tag string, names []string) error {
	return s.changeHolds(ctx, "hold", hosts.OpHold, hosts.Tagged{Tag: tag, Snapshots: names})
}

// Release releases holds.
func (s *Side) Release(ctx context.Context, tag string, names []string) error {
	return s.changeHolds(ctx, "release", hosts.OpRelease, hosts.Tagged{Tag: tag, Snapshots: names})
}

func (s *Side) changeHolds(ctx context.Context, what string, op hosts.Op[hosts.Tagged, hosts.None], q hosts.Tagged) error {
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

// RemoveClones destroys drill clones. It continues after an interruption, for two minutes at most.
func (s *Side) RemoveClones(ctx context.Context, a zfs.DrillClones) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cloneTimeout)
	defer cancel()
	l := retry.Loop{
		Try:       func(ctx context.Context, _ int) error { return hosts.Run(ctx, s, hosts.OpDestroyDrillClones, a) },
		Retryable: func(err, _ error) bool { return errors.Is(err, &zfs.Error{Kind: zfs.Busy}) },
		Pause:     func(_ error, n int) (time.Duration, bool) { return retry.Backoff(n), n <= cloneRetries },
	}
	return l.Run(ctx)
}
