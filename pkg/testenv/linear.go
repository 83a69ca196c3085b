package testenv

import (
	"math"
	"syscall"
	"testing"
	"time"
)

// growth is how much larger the large input of Linear is. Linear work takes as many
// times longer, quadratic work its square.
const growth = 16

// Linear fails the test if work grows clearly faster than its input. prepare returns the
// work for an input of n items. Work for small items should take a millisecond or more.
//
// Linear compares processor times, which other programs hardly change. The test must not
// be parallel: the time of other tests of the package would count.
func Linear(t testing.TB, small int, prepare func(n int) (work func())) {
	t.Helper()
	took := func(n int) float64 {
		work := prepare(n)
		before := processorTime(t)
		work()
		return (processorTime(t) - before).Seconds()
	}
	few, many := 0.0, math.Inf(1)
	for range 8 {
		few, many = max(few, took(small)), min(many, took(growth*small))
		if many < few*growth*math.Sqrt(growth) {
			return
		}
	}
	t.Fatalf("%d items took %.4fs of processor time, %d items %.4fs", small, few, growth*small, many)
}

// processorTime returns the processor time of this process.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
