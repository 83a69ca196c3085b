// Package status turns the job file and the records of jobs into one model of their state.
//
//   - A Status has the state of each job, its copies, pools, disks and drills.
//   - A state is a word, such as "late". The table in severity.go orders the states.
//   - A problem is a reason for a bad state.
//
// Text, JSON, Nagios, metrics, HTML pages and package fleet read only this model. The package runs no job and
// connects to no host. A job's user may own the records, so their content is untrusted.
package status
