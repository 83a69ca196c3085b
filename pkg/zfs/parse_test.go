package zfs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// fenced returns a Query with the secret of the captured fixtures.
func fenced(properties ...string) Query {
	return NewQuery([16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, properties...)
}

const capturedFence = "zxfer:fence-000102030405060708090a0b0c0d0e0f"

func TestParseSurvey(t *testing.T) {
	t.Parallel()
	q := fenced("type", "guid", "encryption", "keystatus", "encryptionroot", "receive_resume_token", "inconsistent",
		"volsize", "origin", "mountpoint", "zxfer:send", "zxfer:note", "org:y")
	text := fixture(t, "get-survey.txt")
	got, err := q.ParseSurvey(string(text))
	require.NoError(t, err)
	l := Listing{Datasets: got}
	require.Equal(t, Volume, l.Find("pa/vol").Type)
	require.Equal(t, "52428800", l.Find("pa/vol").Get("volsize"))
	require.True(t, l.Find("pa/e").Encrypted())
	require.False(t, l.Find("pa/d").Encrypted())
	require.Equal(t, "pa/d@s1", l.Find("pa/clone").Get("origin"))
	require.Equal(t, Property{"a value with  spaces", "local"}, l.Find("pa/with space").Properties["zxfer:note"])
	require.True(t, l.Find("pb/part").Inconsistent())
	require.False(t, l.Find("pb/inc").Inconsistent())
	require.NotEmpty(t, l.Find("pb/inc").ResumeToken())
	require.Equal(t, "inherited from pa", l.Find("pa/d").Properties["mountpoint"].Source)
	require.Empty(t, l.Find("pa/d").Get("origin"))
	require.Equal(t, Property{"x\tlocal\npa/e\tencryption\toff\t-\npa/clone\torg:y\tz", "local"}, l.Find("pa/clone").Properties["org:y"])
	for _, d := range got {
		require.Len(t, d.Properties, len(q.properties), d.Name)
	}

	_, err = NewQuery([16]byte{1}, q.properties...).ParseSurvey(string(text))
	require.ErrorContains(t, err, "it ends within mountpoint of pa", "the fences belong to another query")
	for _, wrong := range []struct{ text, says string }{
		{"t\ttype\tsnapshot\t-\nt\tguid\t1\t-\n", "type of t"},
		{"t\ttype\tvolume\t-\n", "guid of t"},
	} {
		_, err := q.ParseSurvey(wrong.text)
		require.ErrorContains(t, err, wrong.says)
	}
}

func TestParseQuery(t *testing.T) {
	t.Parallel()
	q := fenced("guid", "a:b", "type")
	fence := func(name string) string { return name + "\t" + capturedFence + "\t-\t-\n" }
	got, err := q.Parse("t\ta:b\tone\ttwo\r\n\nlocal\tlocal\n" + fence("t") + "t\tguid\t7\t-\n" +
		"u\ta:b\tx\tlocal\n" + fence("t") + "\tlocal\n" + fence("u"))
	require.NoError(t, err)
	require.Equal(t, map[string]map[string]Property{
		"t": {"a:b": {"one\ttwo\r\n\nlocal", "local"}, "guid": {"7", "-"}},
		"u": {"a:b": {"x\tlocal\n" + fence("t"), "local"}},
	}, got)
	for _, wrong := range []struct{ text, says string }{
		{"t\tguid\t1\n", "expected name"},
		{"t\tguid\t1\t-\t-\n", "expected name"},
		{"t\tnever asked for\t1\t-\n", "expected name"},
		{"\tguid\t1\t-\n", "expected name"},
		{"\n", "expected name"},
		{fence("t"), "expected name"},
		{"t\ta:b\tx\tlocal\n", "it ends within a:b of t"},
		{"t\ta:b\tx\n" + fence("t"), "expected value and source"},
		{"t\tguid\t1\t-\nt\tguid\t2\t-\n", "two values of guid of t"},
		{strings.Repeat("x", maxLine+10), "line 1: got 1048586 bytes"},
		{"t\ta:b\t" + strings.Repeat("x\n", maxLine/2+10), "without an end"},
	} {
		_, err := q.Parse(wrong.text)
		require.ErrorContains(t, err, wrong.says)
	}
}

func TestParseLocal(t *testing.T) {
	t.Parallel()
	got, err := ParseLocal(string(fixture(t, "get-local.txt")))
	require.NoError(t, err)
	require.Equal(t, []string{"mountpoint", "org:y", "volsize", "zxfer:note", "zxfer:send"}, got)
	_, err = ParseLocal("a b\n")
	require.ErrorContains(t, err, "line 1")
}

func TestParsePool(t *testing.T) {
	t.Parallel()
	p, err := ParsePool(string(fixture(t, "zpool-get.txt")))
	require.NoError(t, err)
	require.Equal(t, "pa", p.Name)
	require.Equal(t, uint64(7233616611144222696), p.GUID)
	require.Equal(t, "ONLINE", p.Properties["health"])
	require.Equal(t, "active", p.Features["encryption"])
	require.True(t, p.HasFeature("large_blocks"))
	require.NotContains(t, p.Properties, "feature@encryption")

	old, err := ParsePool(string(fixture(t, "zpool-get-old.txt")))
	require.NoError(t, err)
	require.False(t, old.HasFeature("large_blocks"))
	require.False(t, old.HasFeature("no-such-feature"))

	_, err = ParsePool("a\tguid\t1\t-\nb\tguid\t2\t-\n")
	require.ErrorContains(t, err, `pool "b" after "a"`)
	_, err = ParsePool("a\tcomment\tx\tlocal\ta\tguid\t7\t-\n")
	require.ErrorContains(t, err, "expected name")
	_, err = ParsePool("")
	require.ErrorContains(t, err, "guid")
}

func TestParseHoldsOf(t *testing.T) {
	t.Parallel()
	got, err := ParseHoldsOf("t@x", "t@x\tkeep\tMon\nt@x\ta\tMon\nt@y\tb\tTue\n")
	require.NoError(t, err)
	require.Equal(t, []string{"keep", "a\tMon\nt@y\tb"}, got)
	got, err = ParseHoldsOf("t@x", "")
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = ParseHoldsOf("t@x", "t@y\tkeep\tMon\n")
	require.ErrorContains(t, err, "t@y")
}

// FuzzValueIsNotParsedAsRow expects that every value is parsed unchanged, and that no value is parsed as a
// row.
func FuzzValueIsNotParsedAsRow(f *testing.F) {
	for _, value := range []string{"", "\n", "\t", "-\t-", "x\tlocal\nt/b\ttype\tvolume\t-\nt/a\torg:y\tz", "one\ttwo\nthree\r", "t/a\t" + capturedFence[:12] + "\t-\t-"} {
		f.Add(value, value)
	}
	q := fenced("type", "org:x", "guid", "mountpoint", "written")
	f.Fuzz(func(t *testing.T, x, path string) {
		if len(x)+len(path) > maxLine/2 || strings.Contains(x+path, capturedFence) {
			t.Skip("the value contains the secret fence or is too long for zfs(8)")
		}
		want := map[string]map[string]Property{}
		text := ""
		for _, name := range []string{"t/a", "t/b"} {
			want[name] = map[string]Property{"type": {"filesystem", "-"}, "org:x": {x, "local"}, "guid": {"7", "-"},
				"mountpoint": {path, "inherited from t"}, "written": {"0", "-"}}
			for _, p := range q.properties {
				text += name + "\t" + p + "\t" + want[name][p].Value + "\t" + want[name][p].Source + "\n"
				if p == "org:x" || p == "mountpoint" { // the order of zfs get for list()
					text += name + "\t" + capturedFence + "\t-\t-\n"
				}
			}
		}
		got, err := q.Parse(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// FuzzParseQuery parses arbitrary output, and expects only requested properties, valid property
// names, and GUIDs other than 0.
func FuzzParseQuery(f *testing.F) {
	addFixtures(f)
	q := fenced("type", "guid", "a:b", "mountpoint")
	f.Add([]byte("t\ta:b\tone\ntwo\tlocal\nt\t" + capturedFence + "\t-\t-\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := q.Parse(string(b)); err == nil {
			for name, props := range m {
				require.NotEmpty(t, name)
				require.NotEmpty(t, props)
				for p := range props {
					require.Contains(t, q.properties, p)
				}
			}
		}
		if d, err := q.ParseSurvey(string(b)); err == nil {
			for _, d := range d {
				require.NotZero(t, d.GUID)
			}
		}
		if names, err := ParseLocal(string(b)); err == nil {
			for _, name := range names {
				require.NoError(t, CheckProperty(name))
			}
		}
	})
}

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

	// Versions are sorted by creation, not by output or name.
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

// FuzzParsers parses arbitrary output, and expects versions in order of creation, and GUIDs other
// than 0.
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
