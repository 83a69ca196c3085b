package zfs

import (
	"cmp"
	"fmt"
	"strings"
)

// Kind says why a ZFS operation failed, as far as its message or errno tells.
type Kind string

// The kinds of failures. Their texts travel between hosts; do not change them.
const (
	Unknown      Kind = "unknown"
	NotFound     Kind = "not-found"     // no such dataset, snapshot or pool
	Exists       Kind = "exists"        // the target is there already
	Busy         Kind = "busy"          // held, mounted, or another receive is running
	Permission   Kind = "permission"    // not root and not delegated
	NoSpace      Kind = "no-space"      // pool full or quota reached
	Modified     Kind = "modified"      // the target changed since its last snapshot
	NoBase       Kind = "no-base"       // the incremental's base is missing on the target
	KeyMissing   Kind = "key-missing"   // the encryption key is not loaded
	IVSet        Kind = "ivset"         // raw increment onto a dataset with another IV set (openzfs#8758)
	Feature      Kind = "feature"       // a pool feature is missing
	BadToken     Kind = "bad-token"     // the resume token is corrupt or its snapshot gone
	BadStream    Kind = "bad-stream"    // invalid, checksum mismatch
	Unplanned    Kind = "unplanned"     // the stream brings something else than was planned
	PartialState Kind = "partial-state" // an interrupted receive's saved state stands in the way
	NoState      Kind = "no-state"      // there is no interrupted receive to drop
	Incomplete   Kind = "incomplete"    // the stream ended early; resumable state may have been saved
	InvalidName  Kind = "invalid-name"  // illegal or too long
	PoolFault    Kind = "pool-fault"    // suspended, read-only or I/O error
	Killed       Kind = "killed"        // the process was ended by a signal
	NoZFS        Kind = "no-zfs"        // module not loaded or tool not installed
	NotSupported Kind = "not-supported" // this version of ZFS cannot do it
)

// Error is a failed ZFS operation. errors.As finds it through any wrapping,
// also when the operation ran on another host.
type Error struct {
	Kind    Kind     `json:"kind"`
	Op      string   `json:"op"`                // "send", "receive", "list", "snapshot" …
	Subject string   `json:"subject,omitempty"` // the dataset or snapshot
	Host    string   `json:"host,omitempty"`    // "" on the host that runs zxfer
	Argv    []string `json:"argv,omitempty"`    // the command, where one was run
	Detail  string   `json:"detail,omitempty"`  // tail of stderr, or the library's message
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
