package html

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
)

// limit is a bottleneck and how it is shown.
type limit struct {
	Name, Class string
	Meaning     string
	Share       string // share of the time
	Moved       string // amount moved while it limited
	seconds     float64
	bytes       float64
}

// limitBy sets and returns the bottleneck of most of the time in which streams ran. If the course
// shows none, that is the reported one.
func (p *page) limitBy(reported string) (limitedBy string) {
	if p.Course != nil {
		for _, l := range p.Course.Limits {
			if l.Name == nothingStoodOut {
				break
			}
			if l.Name != nothingRan {
				p.Limit = limitOf(l.Name)
				p.Limit.Share = l.Share
				return l.Name
			}
		}
	}
	p.Limit = limitOf(reported)
	return reported
}

// limitOf returns nil if no bottleneck is known.
func limitOf(limitedBy string) *limit {
	if limitedBy == "" {
		return nil
	}
	return &limit{Name: name(limitedBy), Class: classOf(limitedBy), Meaning: meaning(limitedBy)}
}

// classOf returns the CSS class of a bottleneck, one for each place on the network path, or "none"
// for unknown names.
func classOf(name string) string {
	switch name {
	case transfer.LimitSource:
		return "source"
	case transfer.LimitCompress, transfer.LimitSenderCPU:
		return "sender"
	case transfer.LimitBandwidth:
		return "asked"
	case transfer.LimitReceiverCPU, transfer.LimitExpand:
		return "receiver"
	case transfer.LimitTarget, transfer.LimitVerify:
		return "target"
	}
	if isNetworkLimit(name) {
		return "network"
	}
	return "none"
}

// isNetworkLimit reports whether the bottleneck is between the hosts.
func isNetworkLimit(name string) bool {
	return strings.HasPrefix(name, transfer.LimitNetwork) || name == connect.LimitShell
}

// meaning explains a bottleneck in a sentence.
func meaning(name string) string {
	return map[string]string{
		transfer.LimitSource:      "The source cannot be read faster: its disks or zfs send limit it.",
		transfer.LimitCompress:    "The sending host cannot compress faster.",
		transfer.LimitBandwidth:   "The requested bandwidth limit.",
		transfer.LimitSenderCPU:   "The sending host's processors are busy.",
		transfer.LimitNetwork:     "The network between the hosts is saturated.",
		connect.LimitShell:        "The network between the hosts, or ssh on one of them, is saturated.",
		transfer.LimitWindow:      "The receiving host's TCP window is full: its receive buffer is too small for this network path.",
		transfer.LimitSendBuffer:  "The sending host's TCP buffer is too small for this network path.",
		transfer.LimitReceiverCPU: "The receiving host's processors are busy.",
		transfer.LimitExpand:      "The receiving host cannot decompress faster.",
		transfer.LimitTarget:      "The target cannot write faster: its disks or zfs receive limit it.",
		transfer.LimitVerify:      "Reading back the written data takes longest.",
	}[name]
}

// Names for the absence of a bottleneck.
const (
	nothingStoodOut = "no clear bottleneck"
	nothingRan      = "no stream ran"
)

// limits adds up the time of each bottleneck of a course, longest first.
func limits(c *history.Recording) []limit {
	width, sums := c.Moved.Width.Seconds(), map[string]*limit{}
	rest := c.Length.Seconds()
	for _, s := range c.Moved.Slices {
		n, class := limitIn(s)
		if sums[n] == nil {
			sums[n] = &limit{Name: n, Class: class}
		}
		took := min(width, rest) // the last slice may be incomplete
		rest -= took
		sums[n].seconds += took
		sums[n].bytes += s.Bytes
	}
	var out []limit
	for _, l := range sums {
		if l.seconds <= 0 {
			continue
		}
		l.Share = percent(l.seconds, c.Length)
		l.Moved = report.Seconds(l.seconds)
		if l.bytes >= 1 {
			l.Moved = fmt.Sprintf("%s in %s, %s", size.Text(uint64(l.bytes)), l.Moved, rate(l.bytes, l.seconds))
		}
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b limit) int {
		return cmp.Or(cmp.Compare(b.seconds, a.seconds), strings.Compare(a.Name, b.Name))
	})
	return out
}

// limitIn returns the bottleneck of a slice.
func limitIn(s history.Slice) (name, class string) {
	l, ok := s.Limit()
	switch {
	case !ok:
		return nothingRan, "idle"
	case l == "":
		return nothingStoodOut, "none"
	}
	return text(l), classOf(l)
}

func percent(seconds float64, of time.Duration) string {
	share := 100 * seconds / of.Seconds()
	switch {
	case share < 1:
		return "<1 %"
	case share > 99 && share < 100:
		return ">99 %"
	}
	return fmt.Sprintf("%.0f %%", share)
}
