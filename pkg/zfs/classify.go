package zfs

import "strings"

// rule maps a phrase of a zfs(8) message to a kind. The phrase is in lower case with single
// spaces. If op is set, the rule applies to this operation only.
type rule struct {
	kind   Kind
	op     string
	phrase string
}

// rules are tried in order, and the first match wins. Specific phrases come before general
// ones ("resume token … does not exist" before "does not exist"). The texts are those of
// libzfs 2.1 to 2.4. testdata/zfs-2.3.9/stderr.txt holds captured messages with their
// commands.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_receive_one, zfs_send_one)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_util.c (libzfs_error_description)
var rules = []rule{
	{NoZFS, "", "zfs modules cannot be auto-loaded"},
	{NoZFS, "", "zfs modules are not loaded"},
	{NoZFS, "", "/dev/zfs and /proc/self/mounts are required"},
	{NoZFS, "", "failed to initialize the libzfs library"},

	{IVSet, "", "iv set guid mismatch"},
	{IVSet, "", "iv set guid missing"},

	{BadToken, "", "resume token is corrupt"},
	{BadToken, "", "used in the initial send no longer exists"},
	{BadToken, "", "no longer the same snapshot used in the initial send"},
	{BadToken, OpSend, "no longer exists"}, // the token's incremental source, by GUID
	{BadToken, OpEstimate, "no longer exists"},
	// The partially received state no longer exists on the target. The kernel returns ENOTSUP,
	// which reads as if a module were too old.
	{BadToken, OpReceive, "cannot receive resume stream: kernel modules must be upgraded"},
	{BadToken, OpReceive, "resuming recv on existing dataset without force"},

	{NoState, "", "does not have any resumable receive state"},
	{PartialState, "", "contains partially-complete state"},

	{Permission, "", "permission denied"},
	{Permission, "", "operation not permitted"},
	{Permission, "", "delegated permission is needed"},

	{KeyMissing, "", "key must be loaded"},
	{KeyMissing, "", "encryption key not loaded"},
	{KeyMissing, "", "keys must be loaded"},

	{NoSpace, "", "out of space"},
	{NoSpace, "", "space quota exceeded"},
	{NoSpace, "", "no space left on device"},
	{NoSpace, "", "disk quota exceeded"},

	{PoolFault, "", "pool is read-only"},
	{PoolFault, "", "read-only file system"},
	{PoolFault, "", "currently suspended"},
	{PoolFault, "", "i/o error"},
	{PoolFault, "", "input/output error"},

	{Modified, "", "has been modified since most recent snapshot"},
	{NoBase, "", "does not match incremental source"},
	{NoBase, "", "not an earlier snapshot from the same fs"},
	{NoBase, OpReceive, "local origin for clone"},
	{NoBase, OpReceive, "specified origin fs"},

	{Feature, "", "pool must be upgraded"},
	{Feature, "", "must be upgraded to receive"},
	{Feature, "", "feature not enabled"},
	{Feature, "", "unsupported feature"},
	{Feature, "", "deprecated feature"},
	{Feature, "", "no longer supports deduplicated send streams"},
	{Feature, "", "not compatible with"},
	{Feature, "", "requires -l (--large-block)"},
	{Feature, "", "need -l (--large-block)"},
	{Feature, "", "software on the sending system must be updated"},

	// The process was stopped for a while, for example because the host was suspended.
	{Killed, OpSend, "signal received"},

	{Incomplete, "", "incomplete stream"},
	// A corrective receive whose stream ended early.
	{Incomplete, OpReceive, "was not able to reconstruct the data"},
	{Incomplete, "", "failed to read from stream"},
	{BadStream, "", "checksum mismatch"},
	{BadStream, "", "invalid stream"},
	{BadStream, "", "invalid backup stream"},
	{BadStream, "", "invalid record type"},

	{Exists, "", "already exists"},
	{Exists, "", "bookmark exists"},
	{Exists, "", "to overwrite it"}, // "destination X exists must specify -F …", "… has snapshots must destroy them …"
	{Exists, "", "on top of existing unencrypted dataset"},
	{Exists, "", "cannot overwrite with a zvol"},
	{Exists, "", "overwrite an unencrypted one with an encrypted one"},

	{Busy, "", "it's being held"},
	{Busy, "", "has dependent clones"},
	{Busy, "", "is busy"},

	{InvalidName, "", "is too long"},
	{InvalidName, "", "name too long"},
	{InvalidName, "", "tag too long"},
	{InvalidName, "", "nesting depth exceeded"},
	{InvalidName, "", "invalid character"},
	{InvalidName, "", "empty component"},
	{InvalidName, "", "trailing slash in name"},
	{InvalidName, "", "leading slash in name"},
	{InvalidName, "", "self reference"},
	{InvalidName, "", "parent reference"},
	{InvalidName, "", "delimiters in name"},

	{NotSupported, "", "unrecognized command"},
	{NotSupported, "", "invalid option"},
	{NotSupported, "", "invalid property"}, // of the property list of zfs get or receive -o
	{NotSupported, "", "operation not supported"},

	{NotFound, OpEstimate, "no such process"}, // ESRCH: the incremental source is a bookmark
	{NotFound, "", "does not exist"},
	{NotFound, "", "no such pool"},
	{NotFound, "", "no such tag"},
	{NotFound, "", "could not find any snapshots to destroy"},
	{NotFound, "", "not a zfs filesystem"},
	{NotFound, "", "no such file or directory"},
}

// Classify returns the kind of a failure from the stderr of zfs(8) or zpool(8), run with
// LC_ALL=C. It returns Unknown if no rule matches. Dataset names may contain any phrase, so
// subjects must list the names that the command used.
func Classify(op, stderr string, subjects ...string) Kind {
	text := stderr
	for _, s := range subjects {
		if s != "" {
			text = strings.ReplaceAll(text, s, "…")
		}
	}
	if op == OpReceive {
		if k := kindOf(op, withoutPropertyErrors(text)); k != Unknown {
			return k
		}
	}
	return kindOf(op, text)
}

func kindOf(op, text string) Kind {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, r := range rules {
		if (r.op == "" || r.op == op) && strings.Contains(text, r.phrase) {
			return r.kind
		}
	}
	return Unknown
}

// withoutPropertyErrors removes lines about properties that could not be set. zfs receive prints
// them after a snapshot has arrived, and continues.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_receive_one)
func withoutPropertyErrors(stderr string) string {
	var rest strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "cannot receive ") || !strings.Contains(line, " property on ") {
			rest.WriteString(line)
		}
	}
	return rest.String()
}
