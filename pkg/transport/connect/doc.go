// Package meet brings two ends together: what is sent, read or made up at the
// one is stored at the other. [Choose] decides once for two hosts how bytes
// cross between them; [Run] moves one thing that way. Within one host, over TCP,
// through the remote shell and by a host's plain tools are one path: each is a
// crossing, in a file of its own, which says who listens where, who dials, and
// how the two halves come to one account.
//
// It plans nothing, tries nothing again and does not know why something is
// moved: those are its callers'. What the bytes look like on the network is
// package wire's.
package connect
