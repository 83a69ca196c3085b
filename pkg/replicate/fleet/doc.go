// Package fleet makes one of how the jobs of many hosts stand: it asks all of them,
// so many at once, judges what they answer, and sorts what is not well first.
//
// How a host is asked is its caller's matter; what it answers may be anything.
package fleet
