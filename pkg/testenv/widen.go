package testenv

import (
	"testing"
	"time"
)

// widest is the longest duration that Widen tries on a machine of slowness 1.
const widest = 20 * time.Second

// Widen calls try with longer and longer durations until it returns nil. It fails the
// test if even a very long one does not suffice.
//
// Use it if the code under test compares two durations of real time, such as a stall
// limit with a pause of the peer. A fast machine passes with the first duration, a
// slow machine with a later one, and broken code with none.
func Widen(t testing.TB, first time.Duration, try func(d time.Duration) error) {
	t.Helper()
	for d := first; ; d *= 2 {
		err := try(d)
		if err == nil {
			return
		}
		if d >= Scale(widest) {
			t.Fatalf("with %s: %v", d, err)
		}
		t.Logf("trying a longer duration than %s: %v", d, err)
	}
}
