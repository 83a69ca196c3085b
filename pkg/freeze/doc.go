// Package freeze defines requests to freeze applications while snapshots are taken, and their
// results.
//
// Its nouns:
//
//	Spec     an application and how to reach it
//	Wanted   a Spec and the snapshots it belongs to
//	Request  the snapshots of one transaction and the Wanted applications
//	Outcome  the result of freezing one application
//	Result   the outcomes of a Request
//
// The package touches no system. It validates what comes from a job file or another host. Package
// guard freezes and thaws.
package freeze
