// Package fleet combines the status of the jobs of many hosts.
//
//   - A host is queried for the status of its jobs. It is unreachable if it sends no valid answer.
//   - A fleet is the result for all hosts, the worst first.
//   - A job in a fleet keeps only the details of copies that are not ok.
//
// The caller chooses how to query a host. Answers are untrusted.
package fleet
