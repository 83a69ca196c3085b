package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// prediction holds a row of scripts/bench forecast: the forecast of a transfer and its
// measurement. Rates are in bytes per second.
type prediction struct {
	Row           string  `json:"scenario"`
	Expected      float64 `json:"expected"`
	ExpectedLimit string  `json:"expected_limit"`
	Measured      float64 `json:"measured"`
	MeasuredLimit string  `json:"measured_limit"`
	Failed        bool    `json:"failed,omitempty"` // a command failed, and nothing was measured
}

// forecasts writes a table, and out.json unless out is empty, from lines like
//
//	forecast row=100mbit expected=12000000 expected_limit=network measured=11800000 measured_limit=network
//	forecast row=1gbit failed=1
//
// It forwards all other lines to rest.
func forecasts(in io.Reader, table, rest io.Writer, out string) error {
	var rows []prediction
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "forecast" {
			fmt.Fprintln(rest, lines.Text())
			continue
		}
		p, err := parsePrediction(fields[1:])
		if err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		rows = append(rows, p)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("nothing was measured")
	}
	fmt.Fprint(table, "| scenario | forecast, MB/s | forecast limit | measured, MB/s | measured limit | ratio |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, p := range rows {
		if p.Failed {
			fmt.Fprintf(table, "| %s | - | - | failed | - | - |\n", p.Row)
			continue
		}
		fmt.Fprintf(table, "| %s | %.1f | %s | %.1f | %s | %.2f |\n", p.Row, p.Expected/1e6, words(p.ExpectedLimit), p.Measured/1e6, words(p.MeasuredLimit), p.Expected/p.Measured)
	}
	if out == "" {
		return nil
	}
	text, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out+".json", append(text, '\n'), 0o644)
}

func parsePrediction(fields []string) (p prediction, err error) {
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "row":
			p.Row = value
		case "expected":
			p.Expected, err = strconv.ParseFloat(value, 64)
		case "expected_limit":
			p.ExpectedLimit = value
		case "measured":
			p.Measured, err = strconv.ParseFloat(value, 64)
		case "measured_limit":
			p.MeasuredLimit = value
		case "failed":
			p.Failed = true
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		if err != nil {
			return p, err
		}
	}
	if p.Row == "" || !p.Failed && (p.Expected <= 0 || p.Measured <= 0) {
		return p, fmt.Errorf("a row and two rates are needed")
	}
	return p, nil
}

// words returns limit with spaces for dashes. A single dash means an unknown limit, and
// an empty string a transfer without a bottleneck.
func words(limit string) string {
	if limit == "-" {
		return limit
	}
	return cmp.Or(strings.ReplaceAll(limit, "-", " "), "nothing")
}
