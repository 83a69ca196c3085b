// Package unit writes systemd units, or crontab lines, for the jobs of a job file.
//
//   - A service runs a job once, or drills its copies once.
//   - A timer starts a service by the job's schedule.
//   - Paths are the files and directories that a unit refers to.
//
// It only returns text. The caller installs the files.
package unit
