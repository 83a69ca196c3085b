// Package connect connects two hosts and moves data between them.
//
//   - Host: the local host or a remote one. Side: a host with the facts that it reported.
//   - Link: the chosen path between two hosts: wire, listener, dialer and address.
//   - Path: one direction of connecting, or ssh. [Link.Open] searches one that works.
//   - Carrier: moves data over one kind of wire: within a host, TCP, ssh or nc.
//   - From, To: the two ends. Session: one [Run] between them.
//
// [Choose] returns the link for two hosts. [Run] moves one thing over it.
//
// The package does not plan, does not retry a transfer and does not know its purpose. Package
// tcp defines the bytes on the network.
package connect
