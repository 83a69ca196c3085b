package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"zxfer/pkg/zfs"
)

// Change is an operation that changes a host, with its arguments, as part of a ChangeList.
type Change struct {
	Op   Operation `json:"op"`   // of ChangeOperations
	Args any       `json:"args"` // of the operation's type
}

// ChangeList lists changes of one host. Each starts after the previous one succeeded.
type ChangeList struct {
	Changes []Change `json:"changes"`
	// List is a query that follows the last change; nil = none.
	List *ListQuery `json:"list,omitempty"`
}

// StoppedError is the error of a ChangeList that stopped early.
type StoppedError struct {
	Done int   // the number of changes that succeeded; the next one failed, or the query
	Err  error // of the change or query
}

func (e *StoppedError) Error() string { return e.Err.Error() }

func (e *StoppedError) Unwrap() error { return e.Err }

// Done returns how many changes certainly succeeded before the error of OpApply.
func Done(err error) int {
	if s, ok := errors.AsType[*StoppedError](err); ok {
		return s.Done
	}
	return 0
}

// OpApply applies a list of changes, and stops at the first one that fails: the error is then a
// *StoppedError. It returns the listing of the query, if there is one. After ErrLost, the outcome of all
// changes is unknown. A restricted agent judges every change before it applies the first.
var OpApply = Op[ChangeList, zfs.Listing]{
	name:    "apply",
	plain:   applyChanges,
	request: manyNames,
	answer: func(l ChangeList, request int) int {
		if l.List == nil {
			return 0
		}
		return OpList.answer(*l.List, request)
	},
	check: func(l ChangeList, found *zfs.Listing) error {
		if l.List == nil {
			return nil
		}
		return checkListing(*l.List, found)
	},
}

// ChangeOperations returns the operations that may be part of a ChangeList. They have no answer.
func ChangeOperations() []Operation {
	return []Operation{OpSnapshot, OpHold, OpRelease, OpBookmark, OpDestroy, OpSetProperties, OpSync}
}

func applyChanges(on Plain, ctx context.Context, l ChangeList) (found zfs.Listing, err error) {
	for i, c := range l.Changes {
		if err = ctx.Err(); err == nil {
			err = c.Op.Request(c.Args, nil).On(ctx, on)
		}
		if err != nil {
			return found, &StoppedError{i, err}
		}
	}
	if l.List == nil {
		return found, nil
	}
	if found, err = on.List(ctx, *l.List); err != nil {
		return found, &StoppedError{len(l.Changes), err}
	}
	return found, nil
}

// Limits of a ChangeList: the number of changes, and the bytes of arguments of which Apply sends more than one
// change together. Beyond that, a round trip matters little.
const (
	maxChanges       = 1000
	maxBytesTogether = 1 << 20
)

// Change returns a change for a ChangeList.
func (o Op[A, R]) Change(args A) Change { return Change{o, args} }

// Apply applies changes in order with OpApply, in as few requests as their size permits. It returns how many
// succeeded. The error, if any, is that of the next one. If on is a By of Conn.Retry, the changes must be
// idempotent: after a lost connection, it repeats those of the request.
func Apply(ctx context.Context, on Runner, changes []Change) (done int, err error) {
	for done < len(changes) {
		n, err := together(changes[done:])
		if err != nil {
			return done, err
		}
		_, err = Call(ctx, on, OpApply, ChangeList{Changes: changes[done : done+n]})
		switch succeeded := Done(err); {
		case err == nil:
			done += n
		case succeeded < 0 || succeeded >= n:
			return done, fmt.Errorf("malformed answer: %d of %d changes succeeded: %w", succeeded, n, err)
		default:
			return done + succeeded, err
		}
	}
	return done, nil
}

// together returns how many of the first changes fit into one request, at least 1.
func together(changes []Change) (n int, err error) {
	bytes := 0
	for n < min(len(changes), maxChanges) {
		text, err := json.Marshal(changes[n])
		if n > 0 && (err != nil || bytes+len(text) > maxBytesTogether) {
			break // an invalid change must not fail the ones before it
		}
		if err != nil {
			return 0, err
		}
		bytes += len(text)
		n++
	}
	return n, nil
}

// MarshalText returns the name in the protocol.
func (o Op[A, R]) MarshalText() ([]byte, error) { return []byte(o.name), nil }

// UnmarshalJSON decodes a change from another host. It refuses other operations than ChangeOperations.
func (c *Change) UnmarshalJSON(text []byte) error {
	var m struct {
		Op   string          `json:"op"`
		Args json.RawMessage `json:"args"`
	}
	if err := Decode(text, &m); err != nil {
		return err
	}
	all := ChangeOperations()
	i := slices.IndexFunc(all, func(op Operation) bool { return op.Name() == m.Op })
	if i < 0 {
		return fmt.Errorf("%q is not an operation of a list of changes", cut(m.Op))
	}
	args, err := all[i].Decode(m.Args)
	*c = Change{all[i], args}
	return err
}

// UnmarshalJSON decodes a list from another host. It refuses more than maxChanges changes before it decodes one.
func (l *ChangeList) UnmarshalJSON(text []byte) error {
	var m struct {
		Changes []json.RawMessage `json:"changes"`
		List    *ListQuery        `json:"list"`
	}
	if err := Decode(text, &m); err != nil {
		return err
	}
	if len(m.Changes) > maxChanges {
		return fmt.Errorf("more than %d changes", maxChanges)
	}
	*l = ChangeList{make([]Change, len(m.Changes)), m.List}
	for i, change := range m.Changes {
		if err := l.Changes[i].UnmarshalJSON(change); err != nil {
			return err
		}
	}
	return nil
}
