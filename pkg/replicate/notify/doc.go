// Package notify sends messages about runs to services outside of zxfer.
//
//   - Pinger: the pings of one run to a dead man's switch.
//   - Mail: a message for the host's sendmail.
//
// The URL of a ping is secret. No error, log or process argument contains it. The package does not
// decide when a message is due: packages decide and runner do.
package notify
