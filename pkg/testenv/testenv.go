// Package testenv tells tests how thorough to be and how long to wait. Only tests
// import it.
//
// There are three levels:
//
//   - quick: go test -short. No root, no ZFS, no network.
//   - full: go test. Everything that the machine allows.
//   - long: ZXFER_TEST_LONG=1. The same with more rounds and larger inputs.
//
// scripts/test selects the level and measures the slowness of the machine.
package testenv

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"
)

// Environment variables that scripts/test sets.
const (
	// SlownessVariable holds a factor of 1 or more: how much longer work takes on this
	// machine than on an idle machine with two cores.
	SlownessVariable = "ZXFER_TEST_SLOWNESS"
	// LongVariable selects the long level if it is not empty.
	LongVariable = "ZXFER_TEST_LONG"
)

// hang is the time after which a test on a machine of slowness 1 counts as hung. No
// wait of a working test comes close to it.
const hang = 2 * time.Minute

// Timeout returns how long a test waits for an event before it reports a hang: two
// minutes, times the slowness of the machine.
func Timeout() time.Duration { return Scale(hang) }

// Scale returns d times the slowness of the machine. Use it only for limits that a
// working test cannot reach.
func Scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) * slowness(os.Getenv(SlownessVariable)))
}

// slowness parses the factor of the machine. It returns 1 for an empty value and
// panics for a value that scripts/test cannot have set.
func slowness(value string) float64 {
	if value == "" {
		return 1
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(f) || f < 1 || f > 1000 {
		panic(fmt.Sprintf("%s=%q: want a number from 1 to 1000", SlownessVariable, value))
	}
	return f
}

// Long reports whether the long level is selected.
func Long() bool { return os.Getenv(LongVariable) != "" && !testing.Short() }

// NeedsRoot skips a test at the quick level, and if it does not run as root. The reason
// completes the sentence "needs root".
func NeedsRoot(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: needs root " + reason)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root " + reason)
	}
}

// Rounds returns the count for the selected level. Use it for the size of an input.
func Rounds(quick, full, long int) int {
	switch {
	case testing.Short():
		return quick
	case Long():
		return long
	}
	return full
}
