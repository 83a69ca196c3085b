// Package agentless operates a host on which zxfer does not run: another operating system or
// architecture, a noexec home directory, no space, or an account that permits only zfs commands.
//
// Nouns:
//   - Host: offers a remote shell and zfs(8).
//   - shell: a POSIX shell on the host, which runs scripts. An account without one runs single
//     commands. Most shells and filters split these into the intended words.
//   - stream: a running zfs send or zfs receive on the host. Its data passes through the remote shell,
//     or over a TCP connection from the host's nc to a local listener.
//   - beat: a line that zxfer sends to an nc script's input to show that it is alive.
//   - dialect: the option syntax of an nc implementation.
//
// The gate of package zfs checks streams to the host before they leave this process. The package does
// not measure the host's parts and does not copy devices.
package agentless
