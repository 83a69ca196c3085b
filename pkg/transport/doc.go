// Package transport holds the settings for moving data between two hosts.
//
//   - Settings: the values that the user set. Commands and the job file share them.
//   - Option: one entry of the table, with its flag, job-file key, help and value.
//   - Place: where an option may be written. Condition: when an option has no effect.
//   - Wire: how data crosses: signed, tls, plain, ssh or nc.
//   - Socket: the options of a data socket. Ports: a range of TCP ports.
//   - PathSearch: the result of the search for a network path.
//
// The package opens no connection and chooses no default: package connect does that with
// package tcp.
package transport
