// Package guard freezes applications while a snapshot is taken.
//
// Its nouns:
//
//	watchdog  a process that freezes and thaws, even if the run that started it dies
//	Guard     the run's handle on its watchdog
//	app       one application, with freeze, prove and thaw
//	keeper    the watchdog's goroutine for one frozen application
//	note      a file that lists frozen applications, for recovery after a crash
//
// The package takes no snapshots and knows nothing of jobs.
package guard
