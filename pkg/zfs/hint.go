package zfs

import (
	"cmp"
	"slices"
	"strings"
)

// Operations, the values of Error.Op.
const (
	OpSend     = "send"
	OpReceive  = "receive"
	OpEstimate = "estimate"
	OpList     = "list"
	OpGet      = "get"
	OpPool     = "pool" // zpool get
	OpSnapshot = "snapshot"
	OpHold     = "hold"
	OpRelease  = "release"
	OpBookmark = "bookmark"
	OpDestroy  = "destroy"
	OpCreate   = "create"
	OpDiscard  = "discard" // zfs receive -A
	OpVersion  = "version"
	OpMount    = "mount"
	OpLoadKey  = "load-key"
	OpUnload   = "unload-key"
	OpSet      = "set"
	OpInherit  = "inherit"
	OpUnmount  = "unmount"
	OpKey      = "change-key"
	OpStatus   = "status" // zpool status
	OpScrub    = "scrub"
	OpClone    = "clone"
	OpRollback = "rollback"
	OpSync     = "sync" // zpool sync
	OpRename   = "rename"
)

// Failure describes a failed operation.
type Failure struct {
	Op      string
	Subject string // the dataset, snapshot, bookmark or pool
	User    string // user that ran it, for the hint; "" if unknown
	Argv    []string
	Stderr  string
	Signal  string // signal that ended the process, such as "killed"
	// Properties are those that a receive or create sets. Rollback reports that a receive may
	// roll back. Both need additional permissions.
	Properties []string
	Rollback   bool
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
	switch k {
	case Permission:
		return f.permissionHint(ds)
	case KeyMissing:
		if f.Op == OpReceive {
			return "load the key of the encrypted parent: zfs load-key " + shellQuote(cmp.Or(ParentOf(ds), ds))
		}
		return "zfs load-key " + name + " (or its encryption root), or send raw, which needs no key"
	case Modified:
		return "keep it from happening again: zfs set readonly=on " + name
	case PartialState:
		return "the state of an interrupted receive is kept there; drop it: zfs receive -A " + name
	case Busy:
		switch f.Op {
		case OpDestroy:
			return "who holds it: zfs holds " + shellQuote(f.Subject)
		case OpUnmount:
			return "who uses it: fuser -vm \"$(zfs get -H -o value mountpoint " + name + ")\""
		case OpRollback:
			return "who uses it: zfs holds " + shellQuote(f.Subject) + "; fuser -vm \"$(zfs get -H -o value mountpoint " + name + ")\""
		case OpReceive, OpDiscard:
			return "another receive into " + name + " is running, or it is mounted and in use"
		}
	case NoSpace:
		return "make room, and give the same command again; what uses the space, and which quotas apply: zfs list -o space,quota,refquota -r " + shellQuote(PoolOf(ds))
	case IVSet:
		return "roll the target back to the last snapshot that was received raw, or send it in full to a new name (openzfs#8758)"
	case Feature:
		if strings.Contains(f.Stderr, "--large-block") {
			return "" // the message has its own advice
		}
		if f.Op == OpReceive || f.Op == OpBookmark {
			return "what is off: zpool get all " + shellQuote(PoolOf(ds)) + " | grep feature@; enable one: zpool set feature@NAME=enabled " + shellQuote(PoolOf(ds))
		}
	case BadToken:
		if f.Op == OpReceive {
			return "drop the interrupted receive's state and start again: zfs receive -A " + name
		}
	case PoolFault:
		hint := "zpool status -v " + shellQuote(PoolOf(ds))
		if f.Op == OpSend { // unreadable blocks of the source
			hint += "; data errors that it lists a copy may mend: zxfer heal -n " + shellQuote(PoolOf(ds))
		}
		return hint
	case NoZFS:
		return "modprobe zfs; on Debian: apt install zfsutils-linux zfs-dkms"
	case InvalidName:
		return nameHint
	}
	return ""
}

// permissions returns the permissions that an operation needs, without those of its
// properties.
//
// https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-allow.8.html
func permissions(op string) string {
	switch op {
	case OpSend:
		return "send,snapshot,hold,release,bookmark"
	case OpReceive:
		return "receive,create,mount"
	case OpSnapshot:
		return "snapshot,mount"
	case OpDestroy, OpDiscard:
		return "destroy,mount"
	case OpCreate:
		return "create,mount"
	case OpHold, OpRelease, OpBookmark, OpMount, OpKey, OpRollback:
		return op
	case OpUnmount:
		return OpMount
	}
	return ""
}

func (f Failure) permissionHint(ds string) string {
	perms := permissions(f.Op)
	if perms == "" && len(f.Properties) == 0 {
		return "run it as root, or let the user open /dev/zfs"
	}
	// The dataset does not exist yet, so its parent's permissions apply.
	if f.Op == OpReceive || f.Op == OpCreate {
		ds = cmp.Or(ParentOf(ds), ds)
	}
	if f.Rollback {
		perms += ",rollback"
	}
	for _, p := range slices.Sorted(slices.Values(f.Properties)) {
		if UserProperty(p) {
			p = "userprop"
		}
		if !slices.Contains(strings.Split(perms, ","), p) {
			perms += "," + p
		}
	}
	user := cmp.Or(f.User, "USER")
	perms = strings.TrimPrefix(perms, ",")
	return "run it as root, or as root once: " + CommandLine([]string{"zfs", "allow", "-u", user, perms, ds})
}
