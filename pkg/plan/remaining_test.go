package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// TestRemaining expects the request of one dataset to keep what only the plan of the whole tree knew, and to leave the
// request of the tree unchanged.
func TestRemaining(t *testing.T) {
	t.Parallel()
	tree := Request{Source: "tank/a", Target: "vault/", Recursive: true, NoResume: true, Rotate: "-x", Restore: true,
		Set: map[string]string{"mountpoint": "/a", "atime": "off"}}
	below := &Dataset{Source: "tank/a/b", Target: "vault/a/b", Final: zfs.Version{Name: "s"}}
	step := func(kind Kind, set map[string]string) *Dataset {
		d := *below
		d.Steps = []Step{{Kind: kind, Receive: zfs.ReceiveSpec{Set: set}}, {Kind: Incremental}}
		return &d
	}
	want := Request{Source: "tank/a/b", Snapshot: "s", Target: "vault/a/b", Restore: true, Set: map[string]string{"atime": "off"}}
	require.Equal(t, want, tree.Remaining(below))
	require.Equal(t, want, tree.Remaining(step(Incremental, nil)))

	again := want
	again.RenamedBefore = map[string]bool{"vault/a/b": true}
	require.Equal(t, again, tree.Remaining(step(Full, nil)))
	require.Equal(t, again, tree.Remaining(step(Clone, nil)))

	again.Set = map[string]string{"atime": "off", "encryption": "off"}
	require.Equal(t, again, tree.Remaining(step(Full, map[string]string{"encryption": "off", "readonly": "on"})))
	require.Equal(t, map[string]string{"encryption": "off"}, Request{}.Remaining(step(Full, map[string]string{"encryption": "off"})).Set)

	root := *below
	root.Source, root.Target, root.Rename = "tank/a", "vault/a", &DivergedRename{}
	kept := tree.Remaining(&root)
	require.Equal(t, "-x", kept.Rotate)
	require.Equal(t, tree.Set, kept.Set)
	require.Equal(t, map[string]string{"mountpoint": "/a", "atime": "off"}, tree.Set)
}
