package zfs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// fixture returns captured output without the leading lines that name the command.
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(testenv.Data(t, "zfs-2.3.9", name))
	require.NoError(t, err)
	for bytes.HasPrefix(b, []byte("#")) {
		_, b, _ = bytes.Cut(b, []byte("\n"))
	}
	return b
}

func TestParseVersions(t *testing.T) {
	t.Parallel()
	got, err := ParseVersions(string(fixture(t, "list-versions.txt")))
	require.NoError(t, err)
	require.Len(t, got, 5)
	var d []string
	for _, v := range got["pa/d"] {
		d = append(d, v.Short())
	}
	require.Equal(t, []string{"#b1", "@s1", "@s2"}, d)
	require.Equal(t, Version{Kind: Bookmark, Name: "b1", GUID: 8320397467104832291, CreateTXG: 18}, got["pa/d"][0])
	require.Equal(t, got["pa/d"][0].GUID, got["pa/d"][1].GUID)
	require.Len(t, got["pa/with space"], 2)

	// Order is of creation, not of output or name.
	got, err = ParseVersions("t@a\t3\t30\nt@b\t2\t20\nt#z\t2\t20\nt@c\t4\t20\n")
	require.NoError(t, err)
	require.Equal(t, []Version{
		{Kind: Bookmark, Name: "z", GUID: 2, CreateTXG: 20}, {Kind: Snapshot, Name: "b", GUID: 2, CreateTXG: 20},
		{Kind: Snapshot, Name: "c", GUID: 4, CreateTXG: 20}, {Kind: Snapshot, Name: "a", GUID: 3, CreateTXG: 30}}, got["t"])

	for _, wrong := range []struct{ text, says string }{
		{"t@a\t1\n", "got 2 fields"},
		{"t@a\t1\t2\t3\n", "got 4 fields"},
		{"t\t1\t2\n", `got "t"`},
		{"t@a\t0\t2\n", "guid of t@a"},
		{"t@a\t1\t-\n", `createtxg of t@a: got "-"`},
		{"t@a\t1\t2\n\n", "line 2"},
	} {
		_, err := ParseVersions(wrong.text)
		require.ErrorContains(t, err, wrong.says)
	}
}

func TestParseEstimate(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]uint64{
		"nvP-full.txt": 23123696, "nvP-token-incr.txt": 1187200,
	} {
		got, err := ParseEstimate(string(fixture(t, name)))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for _, name := range []string{"nvP-incr.txt", "nvP-range.txt", "nvP-bm.txt", "nvP-token.txt"} {
		got, err := ParseEstimate(string(fixture(t, name)))
		require.NoError(t, err, name)
		require.Positive(t, got, name)
	}
	for _, wrong := range []struct{ text, says string }{
		{"", "got no line"},
		{"full\ttank/a@x\t10\n", "the last line is"},
		{"size\t1.1M\n", `"1.1M"`},
		{"size\t-1\n", `"-1"`},
	} {
		_, err := ParseEstimate(wrong.text)
		require.ErrorContains(t, err, wrong.says)
	}
}

func addFixtures(f *testing.F) {
	files, err := filepath.Glob(testenv.Data(f, "zfs-2.3.9", "*.txt"))
	require.NoError(f, err)
	for _, name := range files {
		f.Add(fixture(f, filepath.Base(name)))
	}
}

// What is parsed has names and numbers that are what they claim to be.
func FuzzParsers(f *testing.F) {
	addFixtures(f)
	f.Add([]byte("t\ta:b\tone\ntwo\tlocal\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := ParseVersions(string(b)); err == nil {
			for _, versions := range m {
				for i, v := range versions {
					require.NotZero(t, v.GUID)
					if i > 0 {
						require.LessOrEqual(t, versions[i-1].CreateTXG, v.CreateTXG)
					}
				}
			}
		}
		if p, err := ParsePool(string(b)); err == nil {
			require.NotZero(t, p.GUID)
		}
		_, _ = ParseEstimate(string(b))
	})
}
