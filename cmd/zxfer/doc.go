// Command zxfer copies ZFS datasets and block devices between hosts over authenticated TCP.
//
// Its nouns:
//
//	verb     a subcommand, one file each
//	app      the streams and the clock that verbs use
//	options  the flags of a verb, and the request made from them
//	opener   connects to the hosts of a job
//	page     an HTML report in a file
//
// Each verb turns its flags into a request, passes it to another package and turns the result into
// an exit code. The package does no work on datasets itself.
package main
