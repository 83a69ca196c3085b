// Package roundtrips counts the round trips of commands between two simulated hosts, without a network
// and on a fake clock. It has only tests.
package roundtrips
