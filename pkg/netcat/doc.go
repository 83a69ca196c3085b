// Package netcat operates a host where zxfer cannot run, for example because of its architecture, a
// noexec home directory or a ban on uploads.
//
// Nouns:
//   - host: offers only a remote shell, zfs and an nc of a known dialect
//   - script: a shell script for one operation, run through the remote shell
//   - stream: its data, over a TCP connection from the host's nc to a local listener
//   - secret: a single-use token that nc sends first, so that the listener accepts it
//   - beat: a line that zxfer sends to a script's input to show that it is alive
//   - dialect: the option syntax of an nc implementation
//
// It does not encrypt or authenticate streams (see package transport/tcp). It does not measure the
// host, copy devices, or connect two remote hosts.
package netcat
