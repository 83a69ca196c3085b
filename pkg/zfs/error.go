package zfs

import (
	"cmp"
	"fmt"
	"strings"
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
