// Command mutator checks tests by mutants: it changes a package in one place after the
// other and runs the tests that reach the place. A mutant that no test notices shows
// what the tests leave open.
//
// Mutants: conditions and their parts are always true or always false; boundaries of
// comparisons; operators of arithmetic; results are zero; statements are removed. All
// mutants of a package are compiled into one binary, each behind a switch, by an
// overlay: the files of the package are not changed. scripts/mutants runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
)

const usage = `usage: scripts/mutants [--sample N [--seed S]] [--tests PACKAGE]... [--skip REGEXP] PACKAGE[:REGEXP]...
Changes each PACKAGE in one place after the other, and prints which changes no test notices.
  REGEXP           only files whose name matches
  --tests PACKAGE  run the tests of PACKAGE too, such as ./pkg/zfs/...; repeatable
  --skip REGEXP    do not run tests whose name matches, such as slow ones
  --sample N       try only N mutants of each package, chosen at random
  --seed S         the seed of that choice (default: new, printed)
The score counts killed and timed out mutants, in percent of all mutants tried.
`

// options are what the command line asks for.
type options struct {
	sample   int
	seed     uint64
	tests    []string
	skip     *regexp.Regexp // names of tests, nil = none
	packages []selected
}

// selected is a package and which of its files.
type selected struct {
	path  string
	files *regexp.Regexp
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&o.sample, "sample", 0, "")
	flags.Uint64Var(&o.seed, "seed", rand.Uint64N(1e6), "")
	flags.Func("tests", "", func(s string) error {
		o.tests = append(o.tests, local(s))
		return nil
	})
	flags.Func("skip", "", func(s string) (err error) {
		o.skip, err = regexp.Compile(s)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.sample < 0 {
		return o, fmt.Errorf("--sample %d: want a positive number", o.sample)
	}
	if flags.NArg() == 0 {
		return o, errors.New("PACKAGE is missing")
	}
	for _, arg := range flags.Args() {
		path, files, _ := strings.Cut(arg, ":")
		re, err := regexp.Compile(files)
		if err != nil {
			return o, err
		}
		o.packages = append(o.packages, selected{local(path), re})
	}
	return o, nil
}

// local returns a package of this module as go list wants it: pkg/plan is ./pkg/plan.
func local(path string) string {
	if strings.HasPrefix(path, "./") || strings.HasPrefix(path, "/") {
		return path
	}
	return "./" + path
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "mutants:", err)
		}
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, p := range o.packages {
		if err := check(ctx, os.Stdout, os.Stderr, p, o); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
	}
}

// check tries the mutants of one package.
func check(ctx context.Context, out, progress io.Writer, p selected, o options) error {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pkg, exports, err := list(ctx, p.path)
	if err != nil {
		return err
	}
	overlay, mutants, err := mutatePackage(pkg, exports, p.files, dir)
	if err != nil {
		return err
	}
	numbers := make([]int, len(mutants))
	for i := range numbers {
		numbers[i] = i + 1
	}
	if o.sample > 0 && o.sample < len(numbers) {
		fmt.Fprintf(out, "%s: %d of %d mutants, --seed %d\n", pkg.ImportPath, o.sample, len(mutants), o.seed)
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
		numbers = numbers[:o.sample]
		slices.Sort(numbers)
	}
	var tests []test
	for _, path := range slices.Concat([]string{p.path}, o.tests) {
		binaries, err := compile(ctx, overlay, path, dir)
		if err != nil {
			return err
		}
		for _, b := range binaries {
			measured, err := measure(ctx, b, o.skip, dir)
			if err != nil {
				return err
			}
			tests = append(tests, measured...)
		}
	}
	fmt.Fprintf(progress, "%s: %d mutants, %d tests of %.1fs\n", pkg.ImportPath, len(numbers), len(tests), total(tests).cpu.Seconds())
	results := map[int]outcome{}
	for i, n := range numbers {
		if results[n], err = try(ctx, tests, n); err != nil {
			return err
		}
		if (i+1)%50 == 0 {
			fmt.Fprintf(progress, "%s: tried %d of %d\n", pkg.ImportPath, i+1, len(numbers))
		}
	}
	report(out, pkg.ImportPath, mutants, results)
	return nil
}

// report prints a line for each mutant that no test notices, and the sums.
func report(out io.Writer, name string, mutants []mutant, results map[int]outcome) {
	var sums [outcomes]int
	for _, r := range results {
		sums[r]++
	}
	for _, part := range []struct {
		of   outcome
		name string
	}{{survived, "survived"}, {notCovered, "not covered"}} {
		for i, m := range mutants {
			if r, tried := results[i+1]; tried && r == part.of {
				fmt.Fprintf(out, "%s/%s:%d:%d: %s: %s\n", name, m.file, m.line, m.col, part.name, m.what)
			}
		}
	}
	fmt.Fprintf(out, "%s: %d mutants: %d killed, %d survived, %d not covered, %d timed out: score %.1f %%\n", name, len(results),
		sums[killed], sums[survived], sums[notCovered], sums[timedOut], 100*float64(sums[killed]+sums[timedOut])/float64(max(1, len(results))))
}
