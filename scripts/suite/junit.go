package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"
)

// The elements of a JUnit report that CI servers read.
type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string     `xml:"classname,attr"`
	Name    string     `xml:"name,attr"`
	Time    string     `xml:"time,attr"`
	Failure *junitText `xml:"failure,omitempty"`
	Skipped *junitText `xml:"skipped,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// writeJUnit writes all results to a file, one test suite for each package and label.
func (t *tally) writeJUnit(path string) error {
	b, err := xml.MarshalIndent(t.junit(), "", "  ")
	if err != nil {
		return fmt.Errorf("JUnit report: %w", err)
	}
	return os.WriteFile(path, append([]byte(xml.Header), append(b, '\n')...), 0o644)
}

func (t *tally) junit() junitSuites {
	var all junitSuites
	seconds := map[string]float64{}
	for _, k := range t.keys() {
		name := id{pkg: k.pkg, label: k.label}.String()
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != name {
			all.Suites = append(all.Suites, junitSuite{Name: name})
		}
		r, s := t.results[k], &all.Suites[len(all.Suites)-1]
		c := junitCase{Class: name, Name: k.test, Time: fmt.Sprintf("%.3f", r.seconds)}
		switch r.outcome {
		case "fail":
			c.Failure = &junitText{clean(strings.Join(summary(strings.Join(r.output, "")), "\n")), clean(strings.Join(r.output, ""))}
			s.Failures++
		case "skip":
			c.Skipped = &junitText{Message: clean(reason(r.output))}
			s.Skipped++
		}
		if !strings.Contains(k.test, "/") {
			seconds[name] += r.seconds
		}
		s.Cases, s.Tests = append(s.Cases, c), s.Tests+1
	}
	for _, f := range t.failures {
		all.Suites = append(all.Suites, junitSuite{Name: f.name, Tests: 1, Failures: 1, Cases: []junitCase{
			{Class: f.name, Name: "(part)", Time: "0", Failure: &junitText{clean(strings.Join(summary(f.text), "\n")), clean(f.text)}},
		}})
	}
	for i := range all.Suites {
		s := &all.Suites[i]
		s.Time = fmt.Sprintf("%.3f", seconds[s.Name])
		all.Tests, all.Failures, all.Skipped = all.Tests+s.Tests, all.Failures+s.Failures, all.Skipped+s.Skipped
	}
	return all
}

// clean replaces characters that XML 1.0 does not allow.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r < ' ' && r != '\n' && r != '\t' || r == 0xfffe || r == 0xffff {
			return '?'
		}
		return r
	}, text)
}
