// Package runner carries out the jobs of a job file.
//
// Its nouns:
//
//	Runner   runs jobs and owns the connections to their hosts
//	run      one pass of a job: hooks, snapshots, transfers, holds, retention, records
//	side     the part of a job on one host: its source or one of its targets
//	batch    the transfer of a run to one target, and its result
//	Preview  a dry run of the next run
//	Drill    a restore test of a job's copies
//	Failover a change of the roles of source and copy: its plan and its result
//
// The package starts no job by itself: systemd or cron does. Package send moves the data, and
// decision.Decide decides what a run does or a preview shows.
package runner
