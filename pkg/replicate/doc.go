// Package replicate holds the job file of scheduled replication, and the state of its jobs.
//
//   - A job sends the snapshots of a source dataset, and of its descendants, to targets.
//   - A target is the destination of a job. The copy of a dataset is its counterpart on a target.
//   - A job's scope is the set of snapshots that it takes or adopts. It never touches others.
//   - The base of a copy is the most recent common snapshot, the source of the next increment.
//   - A place is the source of the job file or a target. After a fail over, the copy on a target is the
//     source, and the job runs from it (Job.From): the roles on the datasets decide.
//   - An orphan is a copy whose original no longer exists on the source.
//   - A diverged copy is one that a run renamed, to replace it with a new full send.
//   - The inventory is a job file that several hosts share. A part is one host's view of it.
//   - The state is the knowledge of earlier runs.
//
// The package does no I/O and reads no clock. Package decision decides what a run does, package runner runs jobs, package statedir stores
// their state, package unit writes systemd units, package calendar parses schedules.
package replicate
