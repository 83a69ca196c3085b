// Package report shows a job to people and to programs: the plan before
// anything is changed, progress while streams run, and what came of it.
//
// [Text] writes for a person: results to standard output; plans, progress and
// log lines to standard error, as one live line per stream on a terminal and
// as an occasional log line elsewhere. [JSON] writes for a program: one
// versioned object to standard output and progress as JSON lines to standard
// error.
//
// Sizes are binary (1 KiB = 1024 bytes), rates are bytes per second. Text is
// plain ASCII without colour, so that it reads the same on every console; the
// names and messages of other hosts lose their control characters first.
//
// It decides nothing: exit codes are package fault's, what is measured and
// what it means is package job's.
package report
