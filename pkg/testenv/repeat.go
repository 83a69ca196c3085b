package testenv

import (
	"sync/atomic"
	"testing"
)

// Race runs rounds of a race between an attack and code that must withstand it. Each round
// calls weak, a writer that the attack can defeat, which reports whether it lost, and then
// strong, which fails the test if it lost. It ends after at least rounds rounds, when weak
// has lost often enough.
//
// If the attack hardly ever defeats even weak, as on a machine with one busy processor,
// the test proves nothing: Race skips it.
func Race(t testing.TB, rounds int, weak func() (lost bool), strong func()) {
	t.Helper()
	const enough, most = 10, 20
	lost := 0
	for round := 0; lost < enough || round < rounds; round++ {
		if round == most*rounds {
			t.Skipf("the attack succeeded only %d times in %d rounds", lost, round)
		}
		if weak() {
			lost++
		}
		strong()
	}
}

// Repeat calls attack in a goroutine until the returned function is called, which waits
// for the last call to end.
func Repeat(attack func()) (end func()) {
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !over.Load() {
			attack()
		}
	}()
	return func() {
		over.Store(true)
		<-done
	}
}
