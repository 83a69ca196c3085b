// Package statedir stores the results of replication jobs in files.
//
//   - The state directory has one store, a directory, per job.
//   - A run is one execution of a job, a drill one restore test of its copies. Both have a log.
//   - The state is the result of the last run, the drills the result of the last drill.
//   - The cache lists the datasets for which the last run found nothing to do.
//   - A lock prevents concurrent runs, or concurrent drills, of a job.
//
// All files survive a crash: readers skip a partial line of a log, and all other files are
// replaced atomically. The package neither runs jobs nor decides what they do. Package runner computes
// status and metrics from the records.
package statedir
