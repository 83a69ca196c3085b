package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
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

// id identifies a test. Tests with different labels count separately.
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

// result is the outcome of a test over all parts that ran it.
type result struct {
	outcome string // pass, fail or skip
	output  []string
	seconds float64
	place   string // where the outcome was seen
}

// live is a test or a package that has not ended.
type live struct {
	output []string
	since  time.Time // when it started or continued; zero while it waits for its turn
}

// failure is a failed test, or a part or a package that failed without a failed test.
type failure struct {
	name, text string
	again      string // a command, or ""
}

// tally collects the events of all parts. Its methods may be called concurrently.
type tally struct {
	mu       sync.Mutex
	results  map[id]*result
	pending  map[string]map[id]*live    // tests and packages that have not ended, per part
	failed   map[string]map[string]bool // packages with a failed test, per part
	failures []failure
	again    func(place, pkg, test string) string
}

// slowest is how many of the slowest tests are printed.
const slowest = 10

// newTally returns an empty tally. again returns the command that runs a test again in a
// place.
func newTally(again func(place, pkg, test string) string) *tally {
	return &tally{results: map[id]*result{}, pending: map[string]map[id]*live{}, failed: map[string]map[string]bool{}, again: again}
}

// rank orders outcomes: a failure in any part counts, then a pass.
func rank(outcome string) int { return slices.Index([]string{"", "skip", "pass", "fail"}, outcome) }

// line takes one line that a part printed. It reports whether the line says that
// something failed, and returns the failure unless an earlier line had it.
func (t *tally) line(p part, line []byte) (f *failure, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending[p.name] == nil {
		t.pending[p.name], t.failed[p.name] = map[id]*live{}, map[string]bool{}
	}
	var e event
	if json.Unmarshal(line, &e) != nil {
		if strings.TrimSpace(string(line)) == "" {
			return nil, false
		}
		return t.fail(failure{name: p.name, text: "is not an event of go test -json: " + string(line)}), true
	}
	return t.event(p, e)
}

// fail adds a failure of a part or package, and returns it.
func (t *tally) fail(f failure) *failure {
	t.failures = append(t.failures, f)
	return &f
}

func (t *tally) event(p part, e event) (f *failure, failed bool) {
	k := id{e.Package, e.Test, p.label}
	if k.pkg == "" {
		k.pkg, _, _ = strings.Cut(e.ImportPath, " ") // of build output
	}
	pending := t.pending[p.name]
	now := pending[k]
	if now == nil {
		now = &live{}
		pending[k] = now
	}
	switch e.Action {
	case "run", "cont":
		now.since = time.Now()
	case "pause":
		now.since = time.Time{}
	case "output", "build-output":
		now.output = append(now.output, e.Output)
	case "pass", "fail", "skip":
		failed = e.Action == "fail"
		if e.Test == "" {
			if failed && !t.failed[p.name][e.Package] {
				f = t.fail(failure{k.String(), unfinished(pending, k), t.again(p.place, e.Package, "")})
			}
			for other := range pending {
				if other.pkg == e.Package {
					delete(pending, other)
				}
			}
			return f, failed
		}
		delete(pending, k)
		r := t.results[k]
		if r == nil {
			r = &result{}
			t.results[k] = r
		}
		r.seconds = max(r.seconds, e.Elapsed)
		if rank(e.Action) > rank(r.outcome) {
			r.outcome, r.output, r.place = e.Action, now.output, p.place
		}
		if failed {
			t.failed[p.name][e.Package] = true
			if !t.hasFailedSubtest(k) {
				return t.failedTest(k), true
			}
		}
	}
	return nil, failed
}

// failedTest returns the failure of a test.
func (t *tally) failedTest(k id) *failure {
	r := t.results[k]
	return &failure{k.String(), strings.Join(r.output, ""), t.again(r.place, k.pkg, k.test)}
}

// unfinished returns what a package printed, and its tests that did not end. One of those
// that ran panicked or hung.
func unfinished(pending map[id]*live, pkg id) string {
	text := ""
	if p := pending[pkg]; p != nil {
		text = strings.Join(p.output, "")
	}
	for _, k := range slices.SortedFunc(maps.Keys(pending), func(a, b id) int { return cmp.Compare(a.test, b.test) }) {
		if k.pkg == pkg.pkg && k.test != "" && !pending[k].since.IsZero() {
			text += "did not end: " + k.test + "\n" + strings.Join(pending[k].output, "")
		}
	}
	return text
}

// runningTests names the tests of a part that run at this moment and for how long, the
// longest first. It leaves out a test that waits for a subtest. It returns "" if there is
// none.
func (t *tally) runningTests(part string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	pending := t.pending[part]
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(pending)), func(k id) bool {
		if k.test == "" || pending[k].since.IsZero() {
			return true
		}
		for other := range pending {
			if other.pkg == k.pkg && strings.HasPrefix(other.test, k.test+"/") {
				return true
			}
		}
		return false
	})
	slices.SortFunc(keys, func(a, b id) int {
		return cmp.Or(pending[a].since.Compare(pending[b].since), cmp.Compare(a.String(), b.String()))
	})
	var names []string
	for _, k := range keys[:min(namedRunning, len(keys))] {
		names = append(names, fmt.Sprintf("%s for %s", k, since(pending[k].since)))
	}
	if extra := len(keys) - len(names); extra > 0 {
		names = append(names, fmt.Sprintf("%d more", extra))
	}
	return strings.Join(names, ", ")
}

// namedRunning is how many running tests of a part are named.
const namedRunning = 4

// broken records that a part failed without a failed test.
func (t *tally) broken(p part, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail(failure{name: p.name, text: text})
}

// counts returns how many tests have passed and failed so far.
func (t *tally) counts() (passed, failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.results {
		switch r.outcome {
		case "pass":
			passed++
		case "fail":
			failed++
		}
	}
	return passed, failed + len(t.failures)
}

// slow prints the slowest tests. Subtests count as part of their test.
func (t *tally) slow(w io.Writer) {
	keys := t.keys()
	slices.SortStableFunc(keys, func(a, b id) int { return cmp.Compare(t.results[b].seconds, t.results[a].seconds) })
	keys = slices.DeleteFunc(keys, func(k id) bool { return strings.Contains(k.test, "/") })
	fmt.Fprintln(w, "== slowest tests")
	for _, k := range keys[:min(slowest, len(keys))] {
		fmt.Fprintf(w, "%7.1f s %s\n", t.results[k].seconds, k)
	}
}

// keys returns all tests, ordered by label, package and name.
func (t *tally) keys() []id {
	return slices.SortedFunc(maps.Keys(t.results), func(a, b id) int {
		return cmp.Or(cmp.Compare(a.label, b.label), cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	})
}

// report prints the account and reports whether everything passed. It lists the skipped
// tests by reason and the whole output of each failed test. The last lines repeat each
// failure with its error and the command that runs it again, and print the cost of the run.
func (t *tally) report(w io.Writer, cost string) bool {
	count := map[string]int{"fail": len(t.failures)}
	var all []*failure
	t.skipped(w)
	for _, k := range t.keys() {
		r := t.results[k]
		count[r.outcome]++
		if r.outcome == "fail" {
			fmt.Fprintf(w, "--- output of %s\n%s", k, strings.Join(r.output, ""))
			if !t.hasFailedSubtest(k) {
				all = append(all, t.failedTest(k))
			}
		}
	}
	for i, f := range t.failures {
		fmt.Fprintf(w, "--- output of %s\n%s\n", f.name, strings.TrimRight(f.text, "\n"))
		all = append(all, &t.failures[i])
	}
	for _, f := range all {
		fmt.Fprintf(w, "FAIL %s\n%s", f.name, indent("  ", summary(f.text)))
		if f.again != "" {
			fmt.Fprintf(w, "  run it again: %s\n", f.again)
		}
	}
	fmt.Fprintln(w, cost)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	return count["fail"] == 0 && count["pass"] > 0
}

// skipped prints the skipped tests, one line for each reason.
func (t *tally) skipped(w io.Writer) {
	tests := map[string][]string{}
	for _, k := range t.keys() {
		if t.results[k].outcome == "skip" {
			why := reason(t.results[k].output)
			tests[why] = append(tests[why], strings.TrimPrefix(k.String(), "zxfer/"))
		}
	}
	for _, why := range slices.Sorted(maps.Keys(tests)) {
		names := tests[why]
		more := ""
		if extra := len(names) - namedSkips; extra > 0 {
			names, more = names[:namedSkips], fmt.Sprintf(" and %d more", extra)
		}
		fmt.Fprintf(w, "SKIP %s: %s%s\n", why, strings.Join(names, ", "), more)
	}
}

// namedSkips is how many tests are named that were skipped for one reason.
const namedSkips = 4

func (t *tally) hasFailedSubtest(parent id) bool {
	for k, r := range t.results {
		if r.outcome == "fail" && k.pkg == parent.pkg && k.label == parent.label && strings.HasPrefix(k.test, parent.test+"/") {
			return true
		}
	}
	return false
}

// summaryLines bounds the error of a failed test in the last lines of the account.
const summaryLines = 12

// frame matches the lines of a failed test that are not its error.
var frame = regexp.MustCompile(`^\s*(=== |--- |\s*Error Trace:|\s*Test:|\s*$)`)

// summary returns the lines of a test's output that say what failed. It keeps the last
// ones.
func summary(output string) []string {
	var lines []string
	for l := range strings.Lines(output) {
		if !frame.MatchString(l) {
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	if extra := len(lines) - summaryLines; extra > 0 {
		lines = append([]string{fmt.Sprintf("(%d lines above)", extra)}, lines[extra:]...)
	}
	return lines
}

func indent(by string, lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(by + l + "\n")
	}
	return b.String()
}

// position matches the place in the source where a test printed a line.
var position = regexp.MustCompile(`^\w+\.go:\d+: `)

// reason returns the line of a skipped test's output that gives the reason.
func reason(output []string) string {
	for _, l := range output {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "===") && !strings.HasPrefix(l, "---") {
			return position.ReplaceAllString(l, "")
		}
	}
	return "no reason given"
}
