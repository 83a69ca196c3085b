// Package replicate is the policy of scheduled replication: the job file, the
// names of snapshots, which datasets and snapshots a job concerns, what
// retention keeps, and the bandwidth at a time of day. [Decide] says what a run
// is to do, by what earlier runs knew and what this one has seen.
//
// It is pure: it runs nothing and reads no clock. Package runner carries jobs
// out, package record remembers what came of them, package unit makes them
// systemd's.
package replicate
