// Package jobfile reads job files.
//
//   - Decode turns TOML into the types of package replicate, with the lines of keys for messages.
//   - An inventory is a job file that several hosts share: groups of hosts, templates and variables. A part is one host's
//     view of it.
//   - Validation reports all errors, and changes nothing.
//   - A resolved file has all defaults that follow from other keys, and one target for each disk.
//
// The package is pure. It does not open files.
package jobfile
