package zfs

import (
	"cmp"
	"fmt"
	"strings"

	"zxfer/pkg/remedy"
)

// Kind is the reason why a ZFS operation failed, as derived from its message or errno.
type Kind string

// The kinds of failures. Hosts exchange these texts, so do not change them.
const (
	Unknown      Kind = "unknown"
	NotFound     Kind = "not-found"     // no such dataset, snapshot or pool
	Exists       Kind = "exists"        // the target exists
	Busy         Kind = "busy"          // held, mounted, or another receive is running
	Permission   Kind = "permission"    // not root and not delegated
	NoSpace      Kind = "no-space"      // pool full or quota reached
	Modified     Kind = "modified"      // the target changed since its last snapshot
	NoBase       Kind = "no-base"       // the incremental source does not exist on the target
	KeyMissing   Kind = "key-missing"   // the encryption key is not loaded
	IVSet        Kind = "ivset"         // raw incremental stream to a dataset with another IV set (openzfs#8758)
	Feature      Kind = "feature"       // a pool feature is missing
	BadToken     Kind = "bad-token"     // the resume token is corrupt, or its snapshot does not exist
	BadStream    Kind = "bad-stream"    // invalid, checksum mismatch
	Unplanned    Kind = "unplanned"     // the stream does not match the plan
	PartialState Kind = "partial-state" // partially received state prevents the operation
	NoState      Kind = "no-state"      // there is no partially received state to discard
	Incomplete   Kind = "incomplete"    // the stream ended early; partially received state may exist
	InvalidName  Kind = "invalid-name"  // illegal or too long
	PoolFault    Kind = "pool-fault"    // suspended, read-only or I/O error
	Killed       Kind = "killed"        // a signal ended the process
	NoZFS        Kind = "no-zfs"        // module not loaded or tool not installed
	NotSupported Kind = "not-supported" // this version of ZFS cannot do it
)

// Error is a failed ZFS operation. errors.As finds it even if the operation ran on another
// host.
type Error struct {
	Kind    Kind     `json:"kind"`
	Op      string   `json:"op"`                // "send", "receive", "list", "snapshot" …
	Subject string   `json:"subject,omitempty"` // the dataset or snapshot
	Host    string   `json:"host,omitempty"`    // "" on the host that runs zxfer
	Argv    []string `json:"argv,omitempty"`    // the command, if one was run
	Detail  string   `json:"detail,omitempty"`  // end of stderr, or the library's message
	Hint    string   `json:"hint,omitempty"`    // the remedy
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Host != "" {
		fmt.Fprintf(&b, "%s: ", e.Host)
	}
	fmt.Fprintf(&b, "zfs %s", e.Op)
	if e.Subject != "" {
		fmt.Fprintf(&b, " %s", e.Subject)
	}
	fmt.Fprintf(&b, ": %s", cmp.Or(strings.TrimSpace(e.Detail), string(e.Kind)))
	return b.String()
}

// HintText returns the remedy.
func (e *Error) HintText() string { return e.Hint }

// Is matches another *Error by kind alone: errors.Is(err, &zfs.Error{Kind: zfs.Busy}).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind
}

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
	{Feature, OpReceive, "destination contains large blocks, but the incremental stream does not carry them"}, // after 2.4.4
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
	text = normalize(text)
	for _, r := range rules {
		if (r.op == "" || r.op == op) && strings.Contains(text, r.phrase) {
			return r.kind
		}
	}
	return Unknown
}

// normalize returns a message in lower case with single spaces.
func normalize(text string) string { return strings.ToLower(strings.Join(strings.Fields(text), " ")) }

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

// Operations, the values of Error.Op.
const (
	OpSend      = "send"
	OpReceive   = "receive"
	OpEstimate  = "estimate"
	OpList      = "list"
	OpGet       = "get"
	OpPool      = "pool" // zpool get
	OpSnapshot  = "snapshot"
	OpHold      = "hold"
	OpRelease   = "release"
	OpBookmark  = "bookmark"
	OpDestroy   = "destroy"
	OpCreate    = "create"
	OpDiscard   = "discard" // zfs receive -A
	OpVersion   = "version"
	OpAllow     = "allow"
	OpMount     = "mount"
	OpLoadKey   = "load-key"
	OpUnloadKey = "unload-key"
	OpSet       = "set"
	OpInherit   = "inherit"
	OpUnmount   = "unmount"
	OpChangeKey = "change-key"
	OpStatus    = "status" // zpool status
	OpScrub     = "scrub"
	OpClone     = "clone"
	OpRollback  = "rollback"
	OpSync      = "sync" // zpool sync
	OpRename    = "rename"
	OpImport    = "import" // zpool import, without or with a pool
	OpExport    = "export" // zpool export
)

// Failure describes a failed operation.
type Failure struct {
	Op      string
	Subject string // the dataset, snapshot, bookmark or pool
	User    string // user that ran it, for the hint; "" if unknown
	Argv    []string
	Stderr  string
	Signal  string // signal that ended the process, such as "killed"
	// Properties are set by a receive or create. Ranges reports that a send has several snapshots.
	// Both need additional permissions.
	Properties []string
	Ranges     bool
}

// Err returns the failure as a classified error with a hint.
func (f Failure) Err() *Error {
	ds, _, _ := strings.Cut(f.Subject, "@")
	ds, _, _ = strings.Cut(ds, "#")
	e := &Error{
		Kind: Classify(f.Op, f.Stderr, f.Subject, ds), Op: f.Op, Subject: f.Subject,
		Argv: f.Argv, Detail: trimStderr(f.Stderr),
	}
	if e.Kind == Unknown && f.Signal != "" {
		e.Kind = Killed
	}
	if e.Detail == "" && f.Signal != "" {
		e.Detail = "ended by signal: " + f.Signal
	}
	e.Hint = f.Hint(e.Kind)
	return e
}

// trimStderr removes the usage text after a message and the advice to resume by hand.
func trimStderr(s string) string {
	for _, noise := range []string{"\nusage:\n", "\nA resuming stream can be generated"} {
		s, _, _ = strings.Cut(s, noise)
	}
	return strings.TrimSpace(s)
}

// Hint returns the remedy for a failure of kind k, "" if there is none.
func (f Failure) Hint(k Kind) string {
	ds, _, _ := strings.Cut(f.Subject, "@")
	ds, _, _ = strings.Cut(ds, "#")
	ds = cmp.Or(ds, "DATASET")
	name := shellQuote(ds)
	if f.Op != OpSend && f.Op != OpReceive { // their causes depend on both hosts: Transfer.Explain
		if hint := (&Transfer{Target: ds, user: f.User}).explain(f.Op, f.Stderr); hint != "" {
			return hint
		}
	}
	switch k {
	case Permission:
		return f.permissionHint(ds)
	case KeyMissing:
		if f.Op == OpReceive {
			return "load the key of the encrypted parent: " + remedy.MarkPrompt("zfs load-key "+shellQuote(cmp.Or(ParentOf(ds), ds)))
		}
		return remedy.MarkPrompt("zfs load-key "+name) + " (or its encryption root), or send raw, which needs no key"
	case Modified:
		return "prevent further changes: " + remedy.Mark("zfs set readonly=on "+name)
	case PartialState:
		return "abort the interrupted receive: " + remedy.Mark("zfs receive -A "+name)
	case Busy:
		switch f.Op {
		case OpDestroy:
			return "list its holds: " + remedy.Mark("zfs holds "+shellQuote(f.Subject))
		case OpUnmount:
			return "list its users: " + remedy.Mark("fuser -vm \"$(zfs get -H -o value mountpoint "+name+")\"")
		case OpRollback:
			return "list its holds and users: " + remedy.Mark("zfs holds "+shellQuote(f.Subject)+"; fuser -vm \"$(zfs get -H -o value mountpoint "+name+")\"")
		case OpReceive, OpDiscard:
			return "wait until another receive into " + name + " ends, or stop its users"
		}
	case NoSpace:
		return "free space, then run the same command again; to show usage and quotas: " + remedy.Mark("zfs list -o space,quota,refquota -r "+shellQuote(PoolOf(ds)))
	case IVSet:
		return "roll the target back to its last raw snapshot, or send in full to a new name (openzfs#8758)"
	case Feature:
		switch text := normalize(f.Stderr); {
		case strings.Contains(text, "--large-block"):
			return "" // the message has its own advice
		case strings.Contains(text, refusedOnly):
			return "" // no feature is missing
		}
		if f.Op == OpReceive || f.Op == OpBookmark {
			return "list disabled features: " + remedy.Mark("zpool get all "+shellQuote(PoolOf(ds))+" | grep feature@") + "\nenable one: " + remedy.Mark("zpool set feature@NAME=enabled "+shellQuote(PoolOf(ds)))
		}
	case BadToken:
		if f.Op == OpReceive {
			return "abort the interrupted receive, then start again: " + remedy.Mark("zfs receive -A "+name)
		}
	case PoolFault:
		hint := remedy.Mark("zpool status -v " + shellQuote(PoolOf(ds)))
		if f.Op == OpSend { // unreadable blocks of the source
			hint += "\nto heal listed data errors from a copy: " + remedy.Mark("zxfer heal -n "+shellQuote(PoolOf(ds)))
		}
		return hint
	case NoZFS:
		return remedy.MarkRoot("modprobe zfs") + " (on Debian, first: apt install zfsutils-linux zfs-dkms)"
	case InvalidName:
		return nameHint
	}
	return ""
}

// permissionHint names the command that grants the permissions that an operation needs (see Acts).
func (f Failure) permissionHint(ds string) string {
	w := Work{Ops: []string{f.Op}, Properties: f.Properties, Ranges: f.Ranges}
	perms := w.Permissions()
	switch {
	case RootOnly(w.Ops):
		return "run it as root: on Linux, zfs allow cannot permit it to another account"
	case len(perms) == 0:
		return "run it as root, or let the user open /dev/zfs"
	}
	exists := f.Op != OpReceive && f.Op != OpCreate
	return "run it as root, or as root once: " + remedy.MarkRoot(AllowCommand(cmp.Or(f.User, "USER"), perms, w.At(ds, exists)))
}
