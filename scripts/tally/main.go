// Command tally joins the event streams of several `go test -json` runs into
// one account: what failed, with its output, and a closing line. A test that
// was skipped in one run and passed in another (in the guest, say) passed; runs
// with a label are counted apart from those without it.
//
//	go run ./scripts/tally run1.json run2.json "ZFS 2.1=run3.json"
//
// It exits 1 when a test or package failed or no test ran.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// event is a line of test2json; see `go doc cmd/test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

type id struct{ pkg, test, label string }

func (i id) String() string {
	s := i.pkg
	if i.test != "" {
		s += " " + i.test
	}
	if i.label != "" {
		s += " (" + i.label + ")"
	}
	return s
}

// tally collects the outcome of every test over all runs.
type tally struct {
	outcome map[id]string // pass, fail, skip
	output  map[id][]string
	seconds map[id]float64 // of tests, not of their parts
	bad     []string       // packages that failed without a failing test, with their output
}

// slowest is how many of the tests that took longest are named.
const slowest = 12

func newTally() *tally {
	return &tally{outcome: map[id]string{}, output: map[id][]string{}, seconds: map[id]float64{}}
}

// rank orders outcomes: a failure anywhere counts, then a pass.
var rank = map[string]int{"skip": 1, "pass": 2, "fail": 3}

func (t *tally) read(r io.Reader, label string) error {
	in := bufio.NewReader(r)
	failed := map[string]bool{} // packages with a failing test in this run
	output := map[id][]string{}
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				t.bad = append(t.bad, strings.TrimRight(string(line), "\n"))
			} else {
				t.event(e, label, failed, output)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) event(e event, label string, failed map[string]bool, output map[id][]string) {
	k := id{e.Package, e.Test, label}
	switch e.Action {
	case "output", "build-output":
		if k.pkg == "" {
			k.pkg, _, _ = strings.Cut(e.ImportPath, " ")
		}
		output[k] = append(output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			if e.Action == "fail" && !failed[e.Package] {
				t.bad = append(t.bad, "FAIL "+k.String()+"\n"+strings.Join(output[k], ""))
			}
			return
		}
		if e.Action == "fail" {
			failed[e.Package] = true
		}
		if !strings.Contains(e.Test, "/") {
			t.seconds[k] = max(t.seconds[k], e.Elapsed)
		}
		if rank[e.Action] > rank[t.outcome[k]] {
			t.outcome[k], t.output[k] = e.Action, output[k]
		}
		delete(output, k)
	}
}

// slow names the tests that took longest: where to save time.
func (t *tally) slow(w io.Writer) {
	keys := slices.Collect(maps.Keys(t.seconds))
	slices.SortFunc(keys, func(a, b id) int { return cmp.Compare(t.seconds[b], t.seconds[a]) })
	for _, k := range keys[:min(slowest, len(keys))] {
		fmt.Fprintf(w, "%6.1f s %s\n", t.seconds[k], k)
	}
}

// report prints the account and tells whether all is well.
func (t *tally) report(w io.Writer) bool {
	count := map[string]int{}
	var keys []id
	for k, o := range t.outcome {
		count[o]++
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b id) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		switch t.outcome[k] {
		case "skip":
			fmt.Fprintf(w, "SKIP %s: %s\n", k, reason(t.output[k]))
		case "fail":
			fmt.Fprintf(w, "FAIL %s\n%s", k, strings.Join(t.output[k], ""))
		}
	}
	for _, b := range t.bad {
		fmt.Fprintln(w, b)
	}
	count["fail"] += len(t.bad)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	return count["fail"] == 0 && count["pass"] > 0
}

// reason is the line of a skipped test's output that says why.
func reason(output []string) string {
	for _, l := range output {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "===") && !strings.HasPrefix(l, "---") {
			return l
		}
	}
	return "no reason given"
}

func main() {
	t := newTally()
	for _, arg := range os.Args[1:] {
		label, name, labelled := strings.Cut(arg, "=")
		if !labelled {
			label, name = "", arg
		}
		f, err := os.Open(name)
		if err == nil {
			err = t.read(f, label)
			f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "tally:", err)
			os.Exit(1)
		}
	}
	t.slow(os.Stderr)
	if !t.report(os.Stdout) {
		os.Exit(1)
	}
}
