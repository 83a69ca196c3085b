package zfs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestParsePermitted evaluates captured output of "zfs allow 'tank/home/a b'" for several accounts. OpenZFS
// 2.1.11, 2.3.9 and 2.4.4 print the same.
func TestParsePermitted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(testenv.Data(t, "zfs-2.1-2.4", "allow.txt"))
	require.NoError(t, err)
	for _, c := range []struct {
		user, dataset string
		groups        []string
		want          Permitted
	}{
		{"backup", "tank/home/a b", nil, Permitted{
			Here:  []string{"atime", "compression", "hold", "readonly", "release", "send", "snapshot", "userprop"},
			Below: []string{"compression", "hold", "readonly", "release", "send", "snapshot", "userprop"}}},
		{"games", "tank/home/a b", []string{"users", "backup"}, Permitted{
			Here:  []string{"atime", "compression", "readonly", "rename", "userprop"}, // not bookmark, which is local to tank/home
			Below: []string{"compression", "readonly", "rename", "userprop"}}},
		{"54321", "tank/home/a b", []string{"54321"}, Permitted{Here: []string{"atime", "compression"}, Below: []string{"compression"}}},
		{"games", "tank/home", []string{"backup"}, Permitted{
			Here:  []string{"bookmark", "compression", "readonly", "userprop"},
			Below: []string{"compression", "readonly", "userprop"}}},
	} {
		output := string(text)
		if c.dataset == "tank/home" {
			_, output, _ = strings.Cut(output, "everyone atime\n")
		}
		p, err := ParsePermitted(output, c.dataset, c.user, c.groups)
		require.NoError(t, err)
		require.Equal(t, c.want, p, c.user)
	}
	p, err := ParsePermitted("", "tank", "backup", nil)
	require.NoError(t, err)
	require.Empty(t, p, "zfs allow prints nothing for a pool without permissions")
}

// TestParseHostileAllow expects that output which zfs allow does not print is refused, and costs no more time
// than its length.
func TestParseHostileAllow(t *testing.T) {
	t.Parallel()
	const head = "---- Permissions on tank/a ---\n"
	for name, text := range map[string]string{
		"no heading":          "Local permissions:\n\tuser b send\n",
		"another dataset":     "---- Permissions on tank/b ---\n",
		"a longer name":       "---- Permissions on tank/ab ---\n",
		"a block twice":       head + head,
		"from the top":        "---- Permissions on tank ---\n" + head,
		"no section":          head + "\tuser b send\n",
		"another section":     head + "Other permissions:\n\tuser b send\n",
		"another kind":        head + "Local permissions:\n\trole b send\n",
		"an empty permission": head + "Local permissions:\n\tuser b send,,hold\n",
		"an escape":           head + "Local permissions:\n\tuser b \x1b[2J\n",
		"a long permission":   head + "Local permissions:\n\tuser b " + strings.Repeat("x", 300) + "\n",
		"too long":            strings.Repeat(" ", maxAllow+1),
		"too many":            head + "Local permissions:\n" + lines(2*maxPermitted, "\tuser b p%[1]d"),
	} {
		_, err := ParsePermitted(text, "tank/a", "b", nil)
		require.Error(t, err, name)
	}
	for name, text := range map[string]string{
		"endless set": head + "Permission sets:\n\t@a @a,send\nLocal+Descendent permissions:\n\tuser b @a\n",
		"long chain":  head + "Permission sets:\n" + lines(40_000, "\t@s%[1]d @s%[2]d,send") + "Local+Descendent permissions:\n\tuser b @s0\n",
		"many grants": head + "Permission sets:\n\t@a send" + strings.Repeat(",send", 80_000) + "\nLocal+Descendent permissions:\n" + lines(30_000, "\tuser b @a"),
	} {
		p, err := ParsePermitted(text, "tank/a", "b", nil)
		require.NoError(t, err, name)
		require.Equal(t, Permitted{Here: []string{"send"}, Below: []string{"send"}}, p, name)
	}
	require.Error(t, (&Permitted{Here: []string{"a b"}}).Check())
	require.Error(t, (&Permitted{Below: make([]string, maxPermitted+1)}).Check())
}

// lines returns n lines, with the number of each line and of the next one.
func lines(n int, format string) string {
	var b strings.Builder
	for i := range n {
		line := strings.ReplaceAll(format, "%[1]d", fmt.Sprint(i))
		b.WriteString(strings.ReplaceAll(line, "%[2]d", fmt.Sprint(i+1)) + "\n")
	}
	return b.String()
}

// TestMissing expects that a permission includes its weaker form, and that a tree needs it below, too.
func TestMissing(t *testing.T) {
	t.Parallel()
	p := &Permitted{Here: []string{"receive", "send:raw", "mount"}, Below: []string{"receive"}}
	require.Equal(t, []string{"hold", "send"}, p.Missing([]string{"hold", "mount", "receive:append", "send"}, false))
	require.Equal(t, []string{"mount", "send:raw"}, p.Missing([]string{"mount", "receive", "send:raw"}, true))
	require.Empty(t, p.Missing(nil, true))
}

// TestWork expects the weakest permissions, and that the parent of a missing or renamed copy gets them.
func TestWork(t *testing.T) {
	t.Parallel()
	w := Work{ZFS: "2.4.4", Ops: []string{OpSend, OpReceive, OpDestroy}, Properties: []string{"readonly", "zxfer:flags", "org:note"}, Raw: true, Ranges: true}
	require.Equal(t, []string{"create", "destroy", "hold", "mount", "readonly", "receive:append", "send:raw", "userprop"}, w.Permissions())
	w.ZFS, w.RollsBack = "2.1.11", true
	require.Equal(t, []string{"create", "destroy", "hold", "mount", "readonly", "receive", "send", "userprop"}, w.Permissions())
	require.Equal(t, []string{"snapshot"}, Work{Ops: []string{OpSnapshot}, Properties: []string{"readonly"}}.Permissions())
	require.Equal(t, "vault/web", w.At("vault/web", true))
	require.Equal(t, "vault", w.At("vault/web", false))
	w.Renames = true
	require.Equal(t, "vault", w.At("vault/web", true))
	require.Equal(t, "vault", w.At("vault", true))
	require.True(t, RootOnly([]string{OpClone, OpMount}))
	require.False(t, RootOnly([]string{OpClone}))
}
