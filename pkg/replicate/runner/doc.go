// Package runner carries out the jobs of a job file, one run at a time: snapshots,
// hooks, the transfers to all targets, holds and bookmarks, retention, records.
//
// It starts nothing by itself and keeps no process alive: systemd or cron
// does. How data moves is package job's, what is done package replicate's
// (replicate.Decide): a run carries it out, a preview shows it.
package runner
