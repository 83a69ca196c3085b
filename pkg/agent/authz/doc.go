// Package policy says what a restricted agent may do: which datasets it
// receives into, which it sends, and whether anything may be destroyed.
//
// It judges requests as they cross the control channel, before any of them
// reaches a Site. What it does not know (an operation, or a field of a known
// one) it refuses, so that what zxfer learns later is forbidden until a rule
// for it is written here. What it admits it encodes anew: the operation sees
// exactly what was judged.
//
// It does not authenticate anybody: that is the remote shell's. Nor does it
// bound what an admitted receive stores: that is a quota's.
package authz
