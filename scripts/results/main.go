// Command results prints the measurements of scripts/bench as a table. With -o, it also
// writes JSON and an SVG chart. It reads lines like
//
//	result row=loopback contender=socat bytes=2147483648 us=1501000 cpu_ms=2450 own=0
//
// one per run, and forwards all other lines to standard error. Rates are medians over
// the runs, in 10^6 bytes per second. own is the stream rate that zxfer reports, in
// bytes per second, or 0 for other tools. If bytes is 0, results compares times.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

func main() {
	title := flag.String("title", "", "what was measured")
	against := flag.String("against", "", "contenders to give the ratio to, with commas; without: the best that is not zxfer")
	out := flag.String("o", "", "write FILE.json and FILE.svg, too")
	link := flag.Float64("round-trips", 0, "make a table by round trip, see byRoundTrip; the link's rate in bytes per second")
	forecast := flag.Bool("forecast", false, "make a table of forecasts, see func forecasts")
	flag.Parse()
	var err error
	if *forecast {
		err = forecasts(os.Stdin, os.Stdout, os.Stderr, *out)
	} else {
		err = run(os.Stdin, os.Stdout, os.Stderr, *title, *against, *out, *link)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, table, rest io.Writer, title, against, out string, link float64) error {
	runs, err := read(in, rest)
	if err != nil {
		return err
	}
	r := report{Title: title}
	if against != "" {
		r.Against = strings.Split(against, ",")
	}
	r.sum(runs)
	if len(r.Contenders) == 0 {
		return fmt.Errorf("nothing was measured")
	}
	text := r.markdown()
	if link > 0 {
		if text, err = r.byRoundTrip(link); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(table, text); err != nil || out == "" {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return cmp.Or(os.WriteFile(out+".json", append(raw, '\n'), 0o644), os.WriteFile(out+".svg", []byte(r.svg()), 0o644))
}

// measurement holds one run of one contender.
type measurement struct {
	row, contender, note           string // note is one word, such as the bottleneck
	bytes, micros, cpuMillis, ownB float64
}

func read(in io.Reader, rest io.Writer) (runs []measurement, err error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "result" {
			fmt.Fprintln(rest, lines.Text())
			continue
		}
		m, err := parse(fields[1:])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		runs = append(runs, m)
	}
	return runs, lines.Err()
}

func parse(fields []string) (m measurement, err error) {
	numbers := map[string]*float64{"bytes": &m.bytes, "us": &m.micros, "cpu_ms": &m.cpuMillis, "own": &m.ownB}
	words := map[string]*string{"row": &m.row, "contender": &m.contender, "note": &m.note}
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		switch {
		case words[key] != nil:
			*words[key] = value
		case numbers[key] != nil:
			if *numbers[key], err = strconv.ParseFloat(value, 64); err != nil {
				return m, err
			}
		default:
			return m, fmt.Errorf("unknown field %q", key)
		}
	}
	if m.contender == "" || m.bytes < 0 || m.micros <= 0 {
		return m, fmt.Errorf("a contender and us are needed")
	}
	return m, nil
}

// report holds one benchmark. Rates are in 10^6 bytes per second.
type report struct {
	Title      string      `json:"title"`
	Against    []string    `json:"against,omitempty"`
	Contenders []contender `json:"contenders"`
}

// contender holds the results of one tool for one row, a kind of data or link.
type contender struct {
	Row        string    `json:"row,omitempty"`
	Name       string    `json:"contender"`
	Times      []float64 `json:"seconds"` // whole command, one per run
	Time       float64   `json:"median_seconds"`
	Rates      []float64 `json:"rates,omitempty"` // likewise; nil if bytes were not counted
	Rate       float64   `json:"rate,omitempty"`  // their median
	StreamRate float64   `json:"stream_rate,omitempty"`
	CPU        float64   `json:"cpu_seconds_per_gb,omitempty"`
	CPUTime    float64   `json:"cpu_seconds"`
	Ratios     []float64 `json:"ratios"` // to each of Against, or the row's best rival
	Note       string    `json:"note,omitempty"`
}

func (c contender) ours() bool { return strings.HasPrefix(c.Name, "zxfer") }

func (r *report) sum(runs []measurement) {
	type key struct{ row, contender string }
	var order []key
	by := map[key][]measurement{}
	for _, m := range runs {
		k := key{m.row, m.contender}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], m)
	}
	// Keep the input order of the rows, and of the contenders in each row.
	first := map[string]int{}
	for i, k := range order {
		if _, ok := first[k.row]; !ok {
			first[k.row] = i
		}
	}
	slices.SortStableFunc(order, func(a, b key) int { return first[a.row] - first[b.row] })
	for _, k := range order {
		c := contender{Row: k.row, Name: k.contender}
		c.Times = each(by[k], func(m measurement) float64 { return m.micros / 1e6 })
		c.Time = median(c.Times)
		c.CPUTime = median(each(by[k], func(m measurement) float64 { return m.cpuMillis / 1000 }))
		if by[k][0].bytes > 0 {
			c.Rates = each(by[k], func(m measurement) float64 { return m.bytes / m.micros })
			c.Rate = median(c.Rates)
			c.StreamRate = median(each(by[k], func(m measurement) float64 { return m.ownB / 1e6 }))
			c.CPU = median(each(by[k], func(m measurement) float64 { return m.cpuMillis / 1000 / (m.bytes / 1e9) }))
		}
		c.Note = by[k][len(by[k])-1].note
		r.Contenders = append(r.Contenders, c)
	}
	for i := range r.Contenders {
		for _, base := range r.bases(r.Contenders[i].Row) {
			r.Contenders[i].Ratios = append(r.Contenders[i].Ratios, base/r.Contenders[i].each())
		}
	}
}

// each returns the time for 10^6 bytes, or for the whole run if bytes were not counted.
func (c contender) each() float64 {
	if c.Rate > 0 {
		return 1 / c.Rate
	}
	return c.Time
}

// bases returns the times that a row is compared with, as returned by each. 0 means none.
func (r *report) bases(row string) []float64 {
	bases := make([]float64, max(1, len(r.Against)))
	for _, c := range r.Contenders {
		if c.Row != row {
			continue
		}
		if i := slices.Index(r.Against, c.Name); i >= 0 {
			bases[i] = c.each()
		} else if len(r.Against) == 0 && !c.ours() && !strings.HasPrefix(c.Name, limit) {
			if bases[0] == 0 || c.each() < bases[0] {
				bases[0] = c.each()
			}
		}
	}
	return bases
}

// limit is the name prefix of contenders that show the machine's limits and are no rivals.
const limit = "limit_"

func each(runs []measurement, f func(measurement) float64) (out []float64) {
	for _, m := range runs {
		out = append(out, f(m))
	}
	return out
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// column describes a table column. Empty columns are omitted.
type column struct {
	head string
	cell func(contender) string
}

func (r *report) columns() []column {
	number := func(format string, v float64) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprintf(format, v)
	}
	all := []column{
		{"data", func(c contender) string { return c.Row }},
		{"contender", func(c contender) string { return label(c.Name) }},
		{"seconds", func(c contender) string {
			if c.Rate > 0 {
				return ""
			}
			return number("%.1f", c.Time)
		}},
		{r.whole(), func(c contender) string { return number("%.1f", c.Rate) }},
		{"MB/s, stream alone", func(c contender) string { return number("%.1f", c.StreamRate) }},
		{"CPU s/GB", func(c contender) string { return number("%.2f", c.CPU) }},
	}
	against := r.Against
	if len(against) == 0 {
		against = []string{"the best rival"}
	}
	for i, a := range against {
		all = append(all, column{"ratio to " + label(a), func(c contender) string { return number("%.2f", c.Ratios[i]) }})
	}
	all = append(all, column{"note", func(c contender) string { return c.Note }})
	return slices.DeleteFunc(all, func(col column) bool {
		return !slices.ContainsFunc(r.Contenders, func(c contender) bool { return col.cell(c) != "" })
	})
}

// whole returns the heading of the rate column.
func (r *report) whole() string {
	if slices.ContainsFunc(r.Contenders, func(c contender) bool { return c.StreamRate > 0 }) {
		return "MB/s, whole command"
	}
	return "MB/s"
}

func (r *report) markdown() string {
	var b strings.Builder
	if r.Title != "" {
		fmt.Fprintf(&b, "%s\n\n", r.Title)
	}
	columns := r.columns()
	line := func(cell func(column) string) {
		for _, c := range columns {
			fmt.Fprintf(&b, "| %s ", cell(c))
		}
		b.WriteString("|\n")
	}
	line(func(c column) string { return c.head })
	line(func(column) string { return "---" })
	for _, c := range r.Contenders {
		line(func(col column) string { return cmp.Or(col.cell(c), "-") })
	}
	return b.String()
}

func label(name string) string { return strings.ReplaceAll(name, "_", " ") }
