package job

import (
	"context"
	"fmt"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// plainTools is the Site of a host without zxfer. What it opened is closed,
// committed or aborted by the Local that it is given to.
type plainTools interface {
	OpenReceive(ctx context.Context, r zfs.ReceiveSpec, offer wire.Offer, buffer int64) (transfer.Sink, error)
	OpenSend(ctx context.Context, s zfs.SendSpec, offer wire.Offer, buffer int64) (transfer.Source, error)
}

// chooseNetcat makes this host listen, to which the other's nc connects.
func (c *linkChoice) chooseNetcat(source, target *end) error {
	near, far := source, target
	if near.host != "" {
		near, far = target, source
	}
	if near.host != "" || far.host == "" {
		return fault.Usagef("run zxfer on one of the two hosts", "--wire nc needs one end on this host")
	}
	c.listener, c.dialer, c.Streams = near, far, 1
	c.why = "--trusted-link: through the other host's nc; bytes are neither secret nor protected against changes on the way"
	return nil
}

// byNetcat moves a step to or from a host without zxfer.
func (s *sender) byNetcat(ctx context.Context, step *plan.Step, v *view) (sent, received transfer.Result, err error) {
	near, far := s.link.listener, s.link.dialer
	here, err := near.get(ctx)
	if err != nil {
		return sent, received, err
	}
	options := s.options()
	buffer := options.Buffer
	if buffer <= 0 {
		buffer = transfer.DefaultBuffer
	}
	offer := s.link.offer(false, 0)
	err = far.do(ctx, func(st site.Site) error {
		host, ok := st.(plainTools)
		if !ok {
			return fmt.Errorf("%s: it was not reached for wire %s", far.label(), way.NC)
		}
		task := site.Task{Options: options}
		if far == s.target {
			sink, err := host.OpenReceive(ctx, step.Receive, offer, buffer)
			if err != nil {
				return err
			}
			task.Send, task.Sink = &step.Send, sink
		} else {
			src, err := host.OpenSend(ctx, step.Send, offer, buffer)
			if err != nil {
				return err
			}
			task.Receive, task.Source = &step.Receive, src
		}
		received, err = here.Transfer(ctx, task, v.both)
		return err
	})
	return received, received, err
}

// limit names what limits a stream. On wire nc the end that is not here has no
// meters: it and the network are told as one.
func (c linkChoice) limit(limit string, target *end) string {
	switch {
	case c.Wire != way.NC:
	case limit == transfer.LimitTarget && c.dialer == target:
		return "network or target"
	case limit == transfer.LimitSource && c.dialer != target:
		return "source or network"
	}
	return limit
}
