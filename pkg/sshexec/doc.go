// Package sshexec runs programs on other hosts through a remote shell: ssh, or a command that the
// user names.
//
// Nouns:
//   - Options: how to reach a host.
//   - Conn: a connection to zxfer's agent on a host. The bootstrap script starts the agent.
//   - Build: a zxfer binary. If the host lacks it, the bootstrap script stores it in the host's cache
//     directory (CacheDir).
//   - Script: a shell script that runs on a host without zxfer.
//   - Master: an ssh connection that several scripts share.
//   - Relay: a local listener whose connections the remote shell forwards to a host's loopback
//     address.
//
// The package does not speak the agent's protocol.
package sshexec
