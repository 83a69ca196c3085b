// Package agent makes the operations of a host available to another host. Its nouns:
//
//   - operation: one remote procedure with its arguments, answer and limits.
//   - Server: serves the operations of a host on standard input and output.
//   - Remote: the client, a host whose methods call the agent.
//   - Transport: the connection between both.
//   - hello: the agent's first line, with the protocol version.
//   - message: length-prefixed JSON; calls run concurrently.
//   - cost: the memory to decode a message, in bytes (see package budget).
//   - failure: an error in a message.
//
// It does not start processes or connect hosts; package sshexec does. It does not decide what a
// key may do; package authz does.
package agent
