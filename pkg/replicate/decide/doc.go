// Package decide holds the states of jobs, targets and disks that last longer than a run, and the
// transitions between them. It does no I/O and reads no clock: package runner observes the hosts,
// asks this package for the next state, and carries it out.
//
// Each file holds one state machine: its states, its events, and a function Next that returns the
// next state, or a refusal (fault.Refused) that leaves the state as it is. A test enumerates all
// pairs of a state and an event, and writes them to docs/dev/states.md.
package decide
