// Command suite runs the tests of zxfer in parts, some of them side by side, and prints
// one account of them. scripts/test prepares the machine and starts it; its header
// describes the flags.
//
// A part is a command that writes the event stream of `go test -json`, a check that
// prints nothing on success, or the preparation of a tool. A failed test is printed immediately
// with its error. The account names the slowest tests, the time of each part, and every
// failed test with its error and the command that runs it again. The last two lines are the
// time of the run, such as "12 min 3 s, 23 CPU min", and "N passed, N failed, N skipped".
// The exit code is 1 if anything failed or no test ran.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch err := run(ctx, os.Args[1:]); {
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "test:", err)
		os.Exit(2)
	}
}

// errFailed reports that the account names at least one failure.
var errFailed = errors.New("tests failed")

// options holds the flags of scripts/test.
type options struct {
	quick, long, matrix, host bool
	on                        string // place of a single run: host, race, arm64, zfs-2.3
	packages                  string // of a single run
	run                       string // of a single run: a regular expression of go test -run
	report                    string // file of the JUnit report
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("scripts/test", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "")
	f.BoolVar(&o.long, "long", false, "")
	f.BoolVar(&o.matrix, "matrix", false, "")
	f.BoolVar(&o.host, "host", false, "")
	f.StringVar(&o.on, "on", "", "")
	f.StringVar(&o.report, "report", "test-report.xml", "")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	rest := f.Args()
	if o.on != "" {
		if len(rest) == 0 || len(rest) > 2 {
			return o, errors.New("--on PLACE needs a package, such as ./cmd/zxfer, and takes one regular expression")
		}
		if !validPlace(o.on) {
			return o, fmt.Errorf("unknown place %q: want host, race, arm64 or %s", o.on, strings.Join(zfsPlaces(), ", "))
		}
		o.packages = rest[0]
		if len(rest) == 2 {
			o.run = rest[1]
		}
		return o, nil
	}
	if len(rest) > 0 {
		return o, fmt.Errorf("unknown argument %q", rest[0])
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "tests-of-zxfer-") // tests look for leftovers named zxfer*
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil { // databases run as another user
		return err
	}
	began := time.Now()
	slow := slowness()
	fmt.Fprintf(os.Stderr, "== slowness of this machine: %.1f (limits of tests are multiplied by it)\n", slow)
	s := &suite{options: o, work: work, slowness: slow, began: began, tally: newTally(o.again), out: os.Stderr}
	s.runAll(ctx, s.plan())
	if ctx.Err() != nil {
		s.tally.broken(part{name: "run"}, "interrupted: the parts above that did not end are missing")
	}
	s.printTimes(os.Stderr)
	if err := s.tally.writeJUnit(o.report); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "== JUnit report: %s\n", o.report)
	if !s.tally.report(os.Stdout, s.cost(time.Since(began))) {
		return errFailed
	}
	return nil
}

// since returns the whole seconds since a time, as "75 s".
func since(t time.Time) string { return fmt.Sprintf("%.0f s", time.Since(t).Seconds()) }
