// Package importer converts settings of sanoid, syncoid and zrepl into a job file of zxfer
// replicate.
//
// Its nouns:
//
//	Input    one text: sanoid.conf, zrepl.yml, or syncoid commands, also in a crontab or script
//	Entry    a setting to convert by hand, and how
//	Result   the job file and its entries
//	draft    a job under construction
//	policy   sanoid's effective settings for one section
//	filter   zrepl's selection of filesystems
//
// The package converts only settings with the same meaning. It invents no schedule. Retention
// keeps at least what the other tool would keep, in the first run too: snapshots of that tool are
// kept by a copy of its rules in addition to the grid. If a rule cannot be converted, retention is
// omitted and an Entry says so.
//
// The package reads and returns text. It inspects no pool, so it does not know which datasets
// exist, and it does not change the other tool's settings.
package importer
