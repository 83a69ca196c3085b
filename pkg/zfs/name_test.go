package zfs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestParseNames(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return "tank/" + strings.Repeat("x", n-len("tank/")) }
	for _, test := range []struct {
		name string
		ok   bool
		says string // text in the error of an invalid name
	}{
		{"tank", true, ""},
		{"tank/a b/c-d_e.f:g", true, ""},
		{"tank/-a", true, ""},
		{"tank/.a", true, ""},
		{long(255), true, ""},
		{"a" + strings.Repeat("/a", 49), true, ""},
		{"", false, "empty"},
		{"/tank", false, "starts"},
		{"tank/", false, "ends"},
		{"tank//a", false, "between"},
		{"tank/a@x", false, "snapshot"},
		{"tank/a#x", false, "bookmark"},
		{"tank/%recv", false, "%"},
		{"tank/a*", false, `'*'`},
		{"tank/ä", false, `'ä'`},
		{"tank/a\nb", false, `'\n'`},
		{"tank/..", false, `".."`},
		{"tank/./a", false, `"."`},
		{"-r", false, "letter"},
		{"1tank", false, "letter"},
		{" tank", false, "letter"},
		{long(256), false, "256 bytes"},
		{"a" + strings.Repeat("/a", 50), false, "51 levels"},
	} {
		_, err := ParseDataset(test.name)
		_, _, snapErr := ParseSnapshot(test.name + "@x")
		if test.ok {
			require.NoError(t, err, test.name)
			if len(test.name) < MaxName-1 {
				require.NoError(t, snapErr, test.name)
			}
			continue
		}
		require.ErrorIs(t, err, &Error{Kind: InvalidName}, test.name)
		require.Equal(t, fault.Usage, fault.ClassOf(err), test.name)
		require.ErrorContains(t, err, test.says)
		require.ErrorIs(t, snapErr, &Error{Kind: InvalidName}, test.name)
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	ds, name, err := ParseSnapshot("tank/a@x y")
	require.NoError(t, err)
	require.Equal(t, [2]string{"tank/a", "x y"}, [2]string{ds, name})
	ds, name, err = ParseBookmark("tank/a#x")
	require.NoError(t, err)
	require.Equal(t, [2]string{"tank/a", "x"}, [2]string{ds, name})
	ds, v, err := ParseVersion("tank/a#x")
	require.NoError(t, err)
	require.Equal(t, "tank/a#x", v.In(ds))

	for _, wrong := range []string{"tank/a", "tank/a@", "@x", "tank/a@x@y", "tank/a@x#y", "tank/a@x/y", "tank/a@%x", "tank@" + strings.Repeat("x", 251)} {
		_, _, err := ParseVersion(wrong)
		require.ErrorIs(t, err, &Error{Kind: InvalidName}, wrong)
		require.NotEmpty(t, fault.HintOf(err), wrong)
	}
	_, _, err = ParseSnapshot("tank/a#x")
	require.Error(t, err)
	_, _, err = ParseBookmark("tank/a@x")
	require.Error(t, err)
	_, _, err = ParseSnapshot(strings.Repeat("a", 1<<20) + "@x")
	require.Less(t, len(err.Error()), 1000, "long input is not repeated in full")
}

func TestParseGUID(t *testing.T) {
	t.Parallel()
	g, err := ParseGUID("18446744073709551615")
	require.NoError(t, err)
	require.Equal(t, ^uint64(0), g)
	for _, wrong := range []string{"", "-", "0", "18446744073709551616", "0x1", " 1"} {
		_, err := ParseGUID(wrong)
		require.ErrorContains(t, err, "GUID", wrong)
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"tank", "tank/a@x", "tank/a#x", "tank//a", "@", "#", "a/%b", "tank/ä@x", strings.Repeat("a/", 60)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ds, err := ParseDataset(s); err == nil {
			require.Equal(t, s, ds)
			require.LessOrEqual(t, len(s), MaxName)
			require.NotContains(t, "-/.", s[:1])
			require.NotContains(t, s, "@")
		}
		if ds, v, err := ParseVersion(s); err == nil {
			require.Equal(t, s, v.In(ds))
			require.NoError(t, CheckComponent(v.Name))
			_, err := ParseDataset(ds)
			require.NoError(t, err)
		}
	})
}
