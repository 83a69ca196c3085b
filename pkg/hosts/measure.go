package hosts

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"zxfer/pkg/probe"
)

// scratchLimit limits the bytes that a measurement writes.
const scratchLimit = 1 << 30

func (l *Local) Capture(ctx context.Context, brief bool) (string, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return probe.Capture(ctx, brief)
}

func (l *Local) Measure(ctx context.Context, r probe.Request) (probe.Ceiling, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	switch r.ID {
	case probe.SourceRead:
		if r.Send == nil {
			return probe.Ceiling{}, errors.New("no stream to measure")
		}
		src, err := l.tools.OpenSend(ctx, *r.Send)
		if err != nil {
			return probe.Ceiling{}, err
		}
		return probe.Source(ctx, r, src)
	case probe.TargetWrite:
		return l.measureWrite(ctx, r)
	case probe.PathRead, probe.PathWrite:
		if !strings.HasPrefix(r.Dataset, "/") {
			return probe.Ceiling{}, fmt.Errorf("%q is not a path", r.Dataset)
		}
		if r.ID == probe.PathRead {
			return probe.ReadFrom(ctx, r, r.Dataset)
		}
		return probe.WriteTo(ctx, r, r.Dataset, scratchLimit, nil)
	}
	return probe.Run(ctx, r)
}

// measureWrite writes to a scratch dataset and then destroys it.
func (l *Local) measureWrite(ctx context.Context, r probe.Request) (c probe.Ceiling, err error) {
	s, err := l.scratch(ctx, r.Dataset)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, s.Remove(ctx)) }()
	return probe.WriteTo(ctx, r, s.Dir, scratchLimit, s.Settle)
}
