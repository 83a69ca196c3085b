package testenv

import "sync/atomic"

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
