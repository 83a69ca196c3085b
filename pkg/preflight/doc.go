// Package preflight checks a planned transfer against the facts of both hosts, before anything
// changes. Its nouns:
//
//   - Check: an ID, a title and a function from an Input to findings.
//   - Input: the facts, listings, plan and measurements that checks read.
//   - finding: a result with severity, evidence and remedy (package finding).
//   - Host: one end of a transfer; its System holds facts from files.
//   - Link: a measurement of the network in one direction.
//   - defect: a known defect of an OpenZFS release.
//
// It is pure: it queries and changes nothing. It does not decide whether datasets can be
// transferred; package plan does.
package preflight
