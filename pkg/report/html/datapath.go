package html

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/report"
	"zxfer/pkg/size"
	"zxfer/pkg/transfer"
)

// dataPath is the path from source to target, drawn as a pipe. A busier part is narrower.
type dataPath struct {
	Parts []part
	Said  string // explains the shares
}

// part is one part of a data path.
type part struct {
	Name, Host string
	Value      string // "busy 97 %"
	Note       string
	Class      string
	Narrow     bool
	Path       string // SVG path of the pipe
	use        float64
}

// stage is a metered stage of a transfer.
type stage struct {
	name, title, limit string
	sends              bool
}

// measurements holds the measurements of a finished stream or device attempt.
type measurements struct {
	stages  []transfer.Stage
	network *transfer.Network
}

// dataPathOf shows how busy each stage of the streams was.
func dataPathOf(all []measurements, source, target, limitedBy string, device bool) *dataPath {
	sums := map[string]transfer.Stage{}
	var network *transfer.Network
	for _, e := range all {
		for _, s := range e.stages {
			sum := sums[s.Name]
			sum.Busy += s.Busy
			sum.WaitIn += s.WaitIn
			sum.WaitOut += s.WaitOut
			sums[s.Name] = sum
		}
		if e.network != nil {
			network = e.network
		}
	}
	of := func(name string, part func(transfer.Stage) time.Duration) float64 {
		s := sums[name]
		if life := s.Busy + s.WaitIn + s.WaitOut; life > 0 {
			return float64(part(s)) / float64(life)
		}
		return 0
	}
	w := &dataPath{Said: "Share of the transfer time for which each part was busy. The rest of the time it waited for its neighbors."}
	for _, st := range stages(device) {
		p := part{Name: st.title, Host: target, Class: classOf(st.limit)}
		if st.sends {
			p.Host = source
		}
		if _, there := sums[st.name]; st.name != "" && !there {
			continue
		}
		p.use = of(st.name, func(s transfer.Stage) time.Duration { return s.Busy })
		if st.name == "" {
			_, sends := sums[transfer.StageSend]
			if !sends {
				continue // a transfer within one host
			}
			p.use = of(transfer.StageSend, func(s transfer.Stage) time.Duration { return s.WaitOut })
			if _, receives := sums[transfer.StageReceive]; receives {
				p.use = min(p.use, of(transfer.StageReceive, func(s transfer.Stage) time.Duration { return s.WaitIn }))
			}
			p.Host, p.Note = "", networkNote(network)
		}
		p.Value = fmt.Sprintf("busy %.0f %%", 100*p.use)
		p.Narrow = limitedBy != "" && (st.limit == limitedBy || st.limit == transfer.LimitNetwork && isNetworkLimit(limitedBy))
		w.Parts = append(w.Parts, p)
	}
	return w.draw()
}

// stages returns all possible stages in the order of the data flow.
func stages(device bool) []stage {
	read, write := "zfs send", "zfs receive"
	if device {
		read, write = "reading", "writing"
	}
	return []stage{
		{transfer.StageRead, read, transfer.LimitSource, true},
		{transfer.StageHash, "hashing", transfer.LimitSenderCPU, true},
		{transfer.StageCompress, "compressing", transfer.LimitCompress, true},
		{transfer.StageLimit, "bandwidth limit", transfer.LimitBandwidth, true},
		{transfer.StageSend, "sending (CPU)", transfer.LimitSenderCPU, true},
		{"", "network", transfer.LimitNetwork, true},
		{transfer.StageReceive, "receiving (CPU)", transfer.LimitReceiverCPU, false},
		{transfer.StageExpand, "decompressing", transfer.LimitExpand, false},
		{transfer.StageWrite, write, transfer.LimitTarget, false},
		{transfer.StageVerify, "reading back", transfer.LimitVerify, false},
	}
}

func networkNote(n *transfer.Network) string {
	if n == nil {
		return ""
	}
	note := english.Plural(n.Streams, "connection", "") + ", round trip " + milliseconds(n.RTT)
	if n.Retransmits > 0 {
		note += ", " + english.Plural(int(min(n.Retransmits, 1<<31)), "retransmit", "")
	}
	return note
}

// milliseconds formats a duration with three digits: "12.3 ms".
func milliseconds(d time.Duration) string { return fmt.Sprintf("%.3g ms", d.Seconds()*1000) }

// expectedPath shows the measured rate of each part, and the share that the expected rate takes.
func (a About) expectedPath(ceilings []probe.Ceiling, e *forecast.Expected) *dataPath {
	if e == nil || e.BytesPerSecond == 0 || e.TooShort() {
		return nil
	}
	w := &dataPath{Said: "Each part, measured separately. The narrower a part is drawn, the more of its capacity the expected rate needs."}
	found := false
	for _, want := range []struct {
		ids   []string
		limit string
	}{
		{[]string{probe.SourceRead, probe.PathRead}, transfer.LimitSource},
		{nil, transfer.LimitSenderCPU},
		{[]string{"link"}, transfer.LimitNetwork},
		{nil, transfer.LimitReceiverCPU},
		{[]string{probe.TargetWrite, probe.PathWrite}, transfer.LimitTarget},
	} {
		limits := e.LimitedBy == want.limit || want.limit == transfer.LimitNetwork && isNetworkLimit(e.LimitedBy)
		if want.ids == nil && limits {
			w.Parts = append(w.Parts, part{Name: "processors", Host: a.host(e.Host), Value: size.Rate(e.BytesPerSecond), Class: classOf(want.limit), Narrow: true, use: 1})
			found = true
		}
		for _, c := range ceilings {
			if c.BytesPerSecond == 0 || !slices.Contains(want.ids, c.ID) {
				continue
			}
			w.Parts = append(w.Parts, part{Name: text(c.Title), Host: a.host(c.Host), Value: size.Rate(c.BytesPerSecond), Note: networkNote(c.Network),
				Class: classOf(want.limit), Narrow: limits, use: min(1, float64(e.BytesPerSecond)/float64(c.BytesPerSecond))})
			found = found || limits
		}
	}
	if e.LimitedBy == transfer.LimitBandwidth {
		w.Parts = append(w.Parts, part{Name: "bandwidth limit", Value: size.Rate(e.BytesPerSecond), Class: classOf(e.LimitedBy), Narrow: true, use: 1})
	}
	if len(w.Parts) < 2 || !found && e.LimitedBy != transfer.LimitBandwidth {
		return nil
	}
	return w.draw()
}

// draw draws the pipe without steps between parts.
func (w *dataPath) draw() *dataPath {
	if len(w.Parts) < 2 {
		return nil
	}
	half := func(i int) float64 { // half the width, at most 30
		return 26 - 22*math.Sqrt(min(1, max(0, w.Parts[i].use)))
	}
	for i := range w.Parts {
		own := half(i)
		left, right := own, own
		if i > 0 {
			left = (own + half(i-1)) / 2
		}
		if i+1 < len(w.Parts) {
			right = (own + half(i+1)) / 2
		}
		w.Parts[i].Path = fmt.Sprintf("M0 %.1fC15 %.1f 15 %.1f 30 %.1fH70C85 %.1f 85 %.1f 100 %.1fV%.1fC85 %.1f 85 %.1f 70 %.1fH30C15 %.1f 15 %.1f 0 %.1fZ",
			30-left, 30-left, 30-own, 30-own, 30-own, 30-right, 30-right,
			30+right, 30+right, 30+own, 30+own, 30+own, 30+left, 30+left)
	}
	return w
}

// bars shows measured rates side by side.
type bars struct{ Bars []bar }

type bar struct {
	Name, Host, Value, Note string
	Width                   string // percent of the highest
	Class                   string
}

// barsOf shows every ceiling, highest first, with the colors of the network path.
func barsOf(a About, ceilings []probe.Ceiling) *bars {
	if len(ceilings) == 0 {
		return nil
	}
	sorted := slices.Clone(ceilings)
	slices.SortStableFunc(sorted, func(a, b probe.Ceiling) int { return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond) })
	most := float64(max(1, sorted[0].BytesPerSecond))
	b := &bars{}
	for _, c := range sorted[:min(len(sorted), maxRows)] {
		v := bar{Name: text(c.Title), Host: a.host(c.Host), Note: text(c.Note), Class: map[string]string{
			"link": "network", probe.SourceRead: "source", probe.PathRead: "source", probe.TargetWrite: "target", probe.PathWrite: "target"}[c.ID]}
		if c.Peer != "" {
			v.Host += " to " + a.host(c.Peer)
		}
		if c.Skipped != "" || c.BytesPerSecond == 0 {
			v.Note = "not measured"
			if c.Skipped != "" {
				v.Note += ": " + text(c.Skipped)
			}
			b.Bars = append(b.Bars, v)
			continue
		}
		v.Value, v.Width = size.Rate(c.BytesPerSecond), fmt.Sprintf("%.2f%%", 100*float64(c.BytesPerSecond)/most)
		v.Note = strings.Join(slices.DeleteFunc([]string{fmt.Sprintf("%.1f processors busy", c.CPU), v.Note}, func(s string) bool { return s == "" }), ", ")
		b.Bars = append(b.Bars, v)
	}
	return b
}

// eta formats the duration of a planned transfer at the expected rate.
func eta(e *forecast.Expected) string {
	if e == nil || e.Bytes == 0 {
		return ""
	}
	return "about " + report.Seconds(e.Seconds)
}
