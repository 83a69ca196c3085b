package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// scripted is a host whose changes end with errors, in order; nil after their end. It records the arguments of
// each change, and ends each request.
type scripted struct {
	Host
	ends     []error
	ran      []string
	requests int
}

func (s *scripted) Run(_ context.Context, r *Request) error {
	s.requests++
	for i, c := range r.Args.(ChangeList).Changes {
		s.ran = append(s.ran, fmt.Sprint(c.Args))
		if len(s.ends) == 0 {
			continue
		}
		err := s.ends[0]
		s.ends = s.ends[1:]
		switch {
		case errors.Is(err, ErrLost):
			return err
		case err != nil:
			return &StoppedError{i, err}
		}
	}
	return nil
}

func syncs(names ...string) (all []Change) {
	for _, n := range names {
		all = append(all, OpSync.Change(n))
	}
	return all
}

// TestApply expects that a failed change stops the later ones, and that a retry after a lost connection repeats
// the list.
func TestApply(t *testing.T) {
	t.Parallel()
	busy := errors.New("busy")
	for name, tt := range map[string]struct {
		ends []error
		ran  string
		done int
		err  error
	}{
		"success":       {nil, "a b c", 3, nil},
		"failure":       {[]error{nil, busy}, "a b", 1, busy},
		"first failure": {[]error{busy}, "a", 0, busy},
		"lost":          {[]error{nil, ErrLost}, "a b a b c", 3, nil},
		"lost, failure": {[]error{ErrLost, busy}, "a a", 0, busy},
		"lost twice":    {[]error{nil, ErrLost, nil, ErrLost}, "a b a b", 0, ErrLost},
	} {
		s := &scripted{ends: tt.ends}
		retry := func(_ context.Context, f func(Host) error) error {
			err := f(s)
			if errors.Is(err, ErrLost) {
				err = f(s)
			}
			return err
		}
		done, err := Apply(t.Context(), By(retry), syncs("a", "b", "c"))
		require.Equal(t, tt.done, done, name)
		require.ErrorIs(t, err, tt.err, name)
		require.Equal(t, tt.ran, strings.Join(s.ran, " "), name)
	}
}

// TestLongListsAreSplit expects several requests for many changes and for large ones, and the count of all that
// succeeded.
func TestLongListsAreSplit(t *testing.T) {
	t.Parallel()
	s := &scripted{}
	done, err := Apply(t.Context(), s, slices.Repeat(syncs("a"), 2*maxChanges+1))
	require.NoError(t, err)
	require.Equal(t, 2*maxChanges+1, done)
	require.Equal(t, 3, s.requests)

	large := OpDestroy.Change(slices.Repeat([]string{"tank/a@x"}, maxBytesTogether/8))
	s = &scripted{}
	done, err = Apply(t.Context(), s, []Change{OpSync.Change("a"), large, OpSync.Change("b"), OpSync.Change("c")})
	require.NoError(t, err)
	require.Equal(t, 4, done)
	require.Equal(t, 3, s.requests, "a large change has its own request")

	s = &scripted{ends: append(make([]error, maxChanges+6), errors.New("busy"))}
	done, err = Apply(t.Context(), s, slices.Repeat(syncs("a"), 2*maxChanges))
	require.EqualError(t, err, "busy")
	require.Equal(t, maxChanges+6, done)
}

// TestInvalidChangeFailsAlone expects that the changes before an invalid one are applied.
func TestInvalidChangeFailsAlone(t *testing.T) {
	t.Parallel()
	s := &scripted{}
	done, err := Apply(t.Context(), s, append(syncs("a", "b"), Change{OpSync, math.Inf(1)}))
	require.Error(t, err)
	require.Equal(t, 2, done)
	require.Equal(t, "a b", strings.Join(s.ran, " "))
}

// TestLyingCountOfChanges expects an error, and no success, if a host counts more changes than it got.
func TestLyingCountOfChanges(t *testing.T) {
	t.Parallel()
	for _, lie := range []int{-1, 2, math.MaxInt} {
		on := By(func(context.Context, func(Host) error) error { return &StoppedError{lie, errors.New("busy")} })
		done, err := Apply(t.Context(), on, syncs("a", "b"))
		require.ErrorContains(t, err, "malformed answer")
		require.Zero(t, done)
	}
}

// TestChangesOfAnotherHost expects that a list from another host has only operations without an answer, known
// fields, and a limited length.
func TestChangesOfAnotherHost(t *testing.T) {
	t.Parallel()
	all := ChangeList{Changes: []Change{
		OpSnapshot.Change([]string{"a@x"}), OpHold.Change(Tagged{Tag: "t", Snapshots: []string{"a@x"}}), OpRelease.Change(Tagged{Tag: "t"}),
		OpBookmark.Change(map[string]string{"a#x": "a@x"}), OpDestroy.Change([]string{"a@x"}),
		OpSetProperties.Change(zfs.PropertyChange{Dataset: "a", Revert: []string{"b:c"}}), OpSync.Change("a"),
	}, List: &ListQuery{Dataset: "a"}}
	require.Len(t, all.Changes, len(ChangeOperations()))
	body, err := json.Marshal(all)
	require.NoError(t, err)
	got, err := OpApply.Decode(body)
	require.NoError(t, err)
	again, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, string(body), string(again))
	for _, bad := range []string{
		`{"changes":[{"op":"apply","args":{"changes":[]}}]}`, `{"changes":[{"op":"transfer","args":{}}]}`, `{"changes":[{"op":"destroy-orphans","args":[]}]}`,
		`{"changes":[{"op":"sync"}]}`, `{"changes":[{"op":"sync","args":1}]}`, `{"changes":[{"op":"sync","args":"a","after":1}]}`,
		`{"changes":[{"op":"hold","args":{"tag":"t","snapshots":[],"force":true}}]}`, `{"changes":[null]}`, `{"changes":[{}]}`, `{"changes":[],"more":1}`,
		`{"changes":[],"list":{"dataset":"a","more":1}}`, `{"changes":[` + strings.Repeat(`{"op":"sync","args":"a"},`, maxChanges) + `{"op":"sync","args":"a"}]}`,
	} {
		_, err := OpApply.Decode([]byte(bad))
		require.ErrorIs(t, err, ErrMalformed, bad)
	}
}

// TestListingAfterChanges expects the listing to show the changes, and its failure to count all of them.
func TestListingAfterChanges(t *testing.T) {
	t.Parallel()
	on := On(zfsmem.New("tank/a"), "test", func(string) {})
	taken := []Change{OpSnapshot.Change([]string{"tank/a@x"})}
	found, err := Call(t.Context(), on, OpApply, ChangeList{taken, &ListQuery{Dataset: "tank/a", Versions: true}})
	require.NoError(t, err)
	require.Len(t, found.Datasets[0].Versions, 1)
	_, err = Call(t.Context(), on, OpApply, ChangeList{taken, &ListQuery{Dataset: "tank/a"}})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Exists})
	require.Zero(t, Done(err))
	_, err = Call(t.Context(), on, OpApply, ChangeList{[]Change{OpSync.Change("tank")}, &ListQuery{Dataset: "other/a"}})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound})
	require.Equal(t, 1, Done(err))
}

// TestCancelledChanges expects no change to start after the context ended.
func TestCancelledChanges(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	h := zfsmem.New("tank/a")
	var did []string
	h.Around = func(_ context.Context, op string, _ []string, do func() error) error {
		did = append(did, op)
		cancel()
		return do()
	}
	done, err := Apply(ctx, On(h, "test", func(string) {}), syncs("tank/a", "tank/a"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, done)
	require.Equal(t, []string{zfs.OpSync}, did)
}
