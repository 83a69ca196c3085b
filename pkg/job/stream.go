package job

import (
	"context"
	"time"

	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
)

// stream moves one step and returns what happened.
func (s *sender) stream(ctx context.Context, d *plan.Dataset, i int, id int) (*StepResult, error) {
	step := &d.Steps[i]
	count := meet.Count{Done: step.Done}
	if step.Bytes > 0 {
		count.Total = step.Done + step.Bytes
	}
	options := s.options()
	if step.Send.Flags.Raw {
		options.Compress = "off" // encrypted blocks do not compress
	}
	res, err := meet.Run(ctx, s.link,
		meet.From{Host: s.source, What: site.SendStream{Spec: step.Send, Options: options}},
		meet.To{Host: s.target, What: site.ReceiveStream{Spec: step.Receive, Options: options}},
		count, func(p meet.Progress) { s.rep.Progress(id, p) })
	r := &StepResult{
		Source: d.Source, Target: d.Target, Snapshot: "@" + step.Send.To, Kind: step.Kind,
		Bytes: res.Bytes, Seconds: res.Elapsed.Seconds(), Rate: res.Rate(), Resumed: step.Kind == plan.Resume,
		Wire: res.Wire, Network: res.Sent.Network, Digest: res.Received.Digest, Stages: res.Stages, LimitedBy: res.LimitedBy,
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r, err
}

// options are those of a stream that begins now.
func (s *sender) options() transfer.Options {
	now := time.Now
	if s.req.Clock != nil {
		now = s.req.Clock
	}
	return meet.Options(&s.req.Way, now())
}
