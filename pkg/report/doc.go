// Package report renders jobs for people and programs: plans, progress and results.
//
// Its nouns:
//
//	Text      writes for people: results to standard output; plans, progress and messages to standard error
//	JSON      writes for programs: one versioned object to standard output, events to standard error
//	part      one of several transfers that are shown together
//	stream    a running stream and its last progress
//	gauge     bytes, total and rate that can be trusted
//	activity  work in progress without a stream, such as listing a pool
//	screen    the live lines at the bottom of a terminal
//	ceiling   a measured upper limit of the transfer rate
//	Level     the exit code of a monitoring plugin
//
// Sizes are binary (1 KiB = 1024 bytes), rates are bytes per second. Text is plain ASCII without
// colour, so it reads the same on every console. Control characters in names and messages of other
// hosts are removed.
//
// The package makes no decisions: package fault defines exit codes, package measure measures.
package report
