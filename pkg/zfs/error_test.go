package zfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/remedy"
	"zxfer/pkg/testenv"
)

type captured struct {
	kind        Kind
	op, subject string
	command     string
	stderr      string
}

// capturedStderr returns the sections of testdata/zfs-*/stderr.txt.
func capturedStderr(t testing.TB) (out []captured) {
	t.Helper()
	files, err := filepath.Glob(testenv.Data(t, "zfs-*", "stderr.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for i, section := range strings.Split(string(b), "\n== ") {
			if i == 0 {
				continue // the file's description
			}
			head, rest, _ := strings.Cut(section, "\n")
			command, stderr, _ := strings.Cut(rest, "\n")
			h := strings.Split(head, " | ")
			require.Len(t, h, 3, head)
			out = append(out, captured{Kind(h[0]), h[1], strings.TrimPrefix(h[2], "-"), command, stderr})
		}
	}
	return out
}

func TestClassify(t *testing.T) {
	t.Parallel()
	seen := map[Kind]bool{}
	for _, c := range capturedStderr(t) {
		seen[c.kind] = true
		f := Failure{Op: c.op, Subject: c.subject, Stderr: c.stderr, Argv: []string{"zfs"}}
		e := f.Err()
		require.Equal(t, c.kind, e.Kind, "%s\n%s", c.command, c.stderr)
		require.Equal(t, c.op, e.Op)
		require.NotContains(t, e.Detail, "usage:")
		require.NotContains(t, e.Detail, "zfs send -t")
		if c.stderr != "" && c.kind != Unknown {
			require.NotEmpty(t, e.Detail)
		}
	}
	for _, k := range []Kind{NotFound, Exists, Busy, Permission, NoSpace, Modified, NoBase, KeyMissing, IVSet, Feature,
		BadToken, BadStream, PartialState, NoState, Incomplete, InvalidName, PoolFault, NoZFS, NotSupported, Unknown} {
		require.True(t, seen[k], "no captured message of kind %s", k)
	}
}

// TestClassifyIgnoresNames expects that dataset names, which may contain any text, do not affect
// the class.
func TestClassifyIgnoresNames(t *testing.T) {
	t.Parallel()
	name := "tank/out of space: permission denied"
	e := Failure{Op: OpSend, Subject: name + "@is busy", Stderr: "cannot open '" + name + "@is busy': dataset does not exist"}.Err()
	require.Equal(t, NotFound, e.Kind)
	e = Failure{Op: OpReceive, Subject: name, Stderr: "cannot open '" + name + "': strange"}.Err()
	require.Equal(t, Unknown, e.Kind)
}

func TestFailureKilled(t *testing.T) {
	t.Parallel()
	e := Failure{Op: OpSend, Subject: "tank/a@x", Signal: "killed"}.Err()
	require.Equal(t, Killed, e.Kind)
	require.EqualError(t, e, "zfs send tank/a@x: ended by signal: killed")
	e = Failure{Op: OpReceive, Subject: "tank/a", Signal: "terminated", Stderr: "cannot receive: out of space"}.Err()
	require.Equal(t, NoSpace, e.Kind, "its message takes precedence")
}

func TestHints(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		f    Failure
		want string
	}{
		{"send", Failure{Op: OpSend, Subject: "tank/a b@x", User: "ann", Stderr: "permission denied"},
			"run it as root, or as root once: zfs allow -u ann send 'tank/a b'"},
		{"receive into a new dataset", Failure{Op: OpReceive, Subject: "vault/b/c", User: "ann", Stderr: "permission denied",
			Properties: []string{"readonly", "canmount", "org:note", "mountpoint"}},
			"run it as root, or as root once: zfs allow -u ann canmount,create,mount,mountpoint,readonly,receive,userprop vault/b"},
		{"send a range", Failure{Op: OpSend, Subject: "tank/a@x", User: "ann", Stderr: "permission denied", Ranges: true},
			"run it as root, or as root once: zfs allow -u ann hold,send tank/a"},
		{"mount", Failure{Op: OpMount, Subject: "vault/b", User: "ann", Stderr: "permission denied"},
			"run it as root: on Linux, zfs allow cannot permit it to another account"},
		{"receive into a pool", Failure{Op: OpReceive, Subject: "vault", Stderr: "permission denied"},
			"run it as root, or as root once: zfs allow -u USER create,mount,receive vault"},
		{"list", Failure{Op: OpList, Subject: "vault", Stderr: "Permission denied the ZFS utilities must be run as root."},
			"run it as root, or let the user open /dev/zfs"},
		{"key of the source", Failure{Op: OpSend, Subject: "tank/e@x", Stderr: "dataset key must be loaded"},
			"zfs load-key tank/e (or its encryption root), or send raw, which needs no key"},
		{"key of the target", Failure{Op: OpReceive, Subject: "vault/e/a", Stderr: "inherited key must be loaded"},
			"load the key of the encrypted parent: zfs load-key vault/e"},
		{"held", Failure{Op: OpDestroy, Subject: "tank/a@x", Stderr: "it's being held."}, "list its holds: zfs holds tank/a@x"},
		{"conflict", Failure{Op: OpReceive, Subject: "vault/a", Stderr: `contains partially-complete state from "zfs receive -s".`},
			"abort the interrupted receive: zfs receive -A vault/a"},
		{"large blocks", Failure{Op: OpReceive, Subject: "vault/a", Stderr: "requires -L (--large-block), to match"}, ""},
		{"damaged source", Failure{Op: OpSend, Subject: "tank/a@x", Stderr: "warning: cannot send 'tank/a@x': Input/output error"},
			"zpool status -v tank\nto heal listed data errors from a copy: zxfer heal -n tank"},
		{"faulty target", Failure{Op: OpReceive, Subject: "vault/a", Stderr: "cannot receive: I/O error"}, "zpool status -v vault"},
		{"not found", Failure{Op: OpSend, Subject: "tank/a@x", Stderr: "dataset does not exist"}, ""},
	} {
		require.Equal(t, test.want, remedy.Here(test.f.Err().HintText()), test.name)
	}
	for _, k := range []Kind{Modified, NoSpace, IVSet, Feature, PoolFault, NoZFS, InvalidName, BadToken, Busy} {
		require.NotEmpty(t, Failure{Op: OpReceive, Subject: "vault/a"}.Hint(k), k)
	}
}
