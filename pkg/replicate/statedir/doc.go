// Package record remembers what came of replication runs: a log of runs that
// is only appended to, the state of every dataset, a lock per job, and
// Prometheus metrics for node_exporter's textfile collector.
//
// Everything survives a crash at any moment: a line of the log that was cut
// short is passed over, all other files are replaced as a whole. It decides
// nothing and runs nothing.
package statedir
