package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// baseline is the contender that only logs in.
	baseline = "login"
	// estimate is the note of a time that was extrapolated.
	estimate = "estimate"
)

// roundTrips is a table with a column for each round trip. rate is the rate of the link in
// bytes per second.
type roundTrips struct {
	rate  float64
	trips []int // in ms, ascending
	cells map[contest]map[int]contender
	text  strings.Builder
}

// contest identifies a contender of a work.
type contest struct{ work, contender string }

// byRoundTrip returns the table of a report. Rows of the report are named WORK/MS, with the round
// trip in milliseconds.
func (r *report) byRoundTrip(rate float64) (string, error) {
	t := roundTrips{rate: rate, cells: map[contest]map[int]contender{}}
	var order []contest
	for _, c := range r.Contenders {
		work, ms, _ := strings.Cut(c.Row, "/")
		trip, err := strconv.Atoi(ms)
		if err != nil || trip <= 0 {
			return "", fmt.Errorf("row %q has no round trip", c.Row)
		}
		of := contest{work, c.Name}
		if t.cells[of] == nil {
			t.cells[of] = map[int]contender{}
			order = append(order, of)
		}
		t.cells[of][trip] = c
		t.trips = append(t.trips, trip)
	}
	slices.Sort(t.trips)
	t.trips = slices.Compact(t.trips)
	first := map[string]int{}
	for i, of := range order {
		if _, ok := first[of.work]; !ok {
			first[of.work] = i
		}
	}
	slices.SortStableFunc(order, func(a, b contest) int { return cmp.Compare(first[a.work], first[b.work]) })

	t.text.WriteString("| work | contender |")
	for _, trip := range t.trips {
		fmt.Fprintf(&t.text, " %d ms |", trip)
	}
	t.text.WriteString("\n|" + strings.Repeat(" --- |", 2+len(t.trips)) + "\n")
	for _, of := range order {
		t.add(of)
	}
	return t.text.String(), nil
}

// add writes the lines of a contender: its times and, for zxfer, figures derived from them.
func (t *roundTrips) add(of contest) {
	t.row(of, "", func(c contender, _ int) string {
		if c.Note == estimate {
			return fmt.Sprintf("(%.0f)", c.Time)
		}
		return fmt.Sprintf("%.2f", c.Time)
	})
	if !strings.HasPrefix(of.contender, "zxfer") {
		return
	}
	t.row(of, ": round trips after the login", t.afterLogin)
	t.row(of, ": share of the link, command", func(c contender, _ int) string { return percent(c.Rate * 1e6 / t.rate) })
	t.row(of, ": share of the link, stream", func(c contender, _ int) string { return percent(c.StreamRate * 1e6 / t.rate) })
	t.row(of, ": ratio to the best rival", func(c contender, _ int) string {
		if len(c.Ratios) == 0 || c.Ratios[0] == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", c.Ratios[0])
	})
}

// afterLogin returns the time after the login in round trips. It returns "" below 10 ms, where
// processor time exceeds several round trips.
func (t *roundTrips) afterLogin(c contender, trip int) string {
	login, ok := t.cells[contest{baseline, baseline}][trip]
	if !ok || trip < 10 || c.Rate > 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", (c.Time-login.Time)*1000/float64(trip))
}

// row writes a line of the table, unless all of its cells are empty.
func (t *roundTrips) row(of contest, what string, cell func(c contender, trip int) string) {
	var line strings.Builder
	empty := true
	for _, trip := range t.trips {
		text := ""
		if c, ok := t.cells[of][trip]; ok {
			text = cell(c, trip)
		}
		empty = empty && text == ""
		fmt.Fprintf(&line, " %s |", cmp.Or(text, "-"))
	}
	if !empty {
		fmt.Fprintf(&t.text, "| %s | %s%s |%s\n", label(of.work), label(strings.TrimPrefix(of.contender, limit)), what, &line)
	}
}

// percent returns a share as text, or "" for 0.
func percent(share float64) string {
	if share == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", share*100)
}
