package job

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
)

// A name that one of the datasets has already is refused before anything is touched,
// and it is said what the name is taken by, and what to do.
func TestASnapshotThatIsThereIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x", "new"}, "dst": nil})
	w.host.Copy("src/a", "dst/a", "x")
	req := request(func(s *Send) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
	_, err := RunSend(t.Context(), req, hosts.New(w), silent{})
	require.ErrorContains(t, err, "{{snapshot new}} takes a new snapshot, but there is one of that name: src/a/b@new")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "{{snapshot =}} takes one with a name of its own")
	require.Contains(t, fault.HintOf(err), "the same command, with src/a@new as its source and without {{snapshot}}")
	require.Empty(t, w.did)
}

// What was interrupted behind a snapshot that was taken goes on with that one.
func TestAnInterruptedSnapshotIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": nil, "dst": nil})
	w.before = failing("receive", tcp.ErrCut)
	req := request(func(s *Send) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
	_, err := RunSend(t.Context(), req, hosts.New(w), silent{})
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.Equal(t, "the same command resumes, with src/a@new as its source and without {{snapshot}}", fault.HintOf(err))
}

// A pool that is not there is refused as a dataset is.
func TestMissingNamesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	for name, change := range map[string]func(*Send){
		"no such dataset: src/none": func(s *Send) { s.Source.Name, s.Plan.Source = "src/none", "src/none" },
		"no such pool: none":        func(s *Send) { s.Source.Name, s.Plan.Source = "none/a", "none/a" },
		"no such pool: beta":        func(s *Send) { s.Target, s.Plan.Target = endpoint.Endpoint{Name: "beta"}, "beta" },
	} {
		_, err := RunSend(t.Context(), request(change), hosts.New(w), silent{})
		require.ErrorContains(t, err, name)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err))
	}
	require.Empty(t, w.did)
}

// TestIllegalTargetsAreUsageErrors plans targets that no dataset can have.
func TestIllegalTargetsAreUsageErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	for target, says := range map[string]string{"dst/a%b": "a%b", "dst/" + strings.Repeat("x", 252): "255"} {
		_, err := RunSend(t.Context(), request(func(s *Send) { s.Target.Name, s.Plan.Target = target, target }), hosts.New(w), silent{})
		require.ErrorContains(t, err, says)
		require.Equal(t, fault.Usage, fault.ClassOf(err))
	}
	require.Empty(t, w.did)
}
