package endpoint

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in, host, name string
	}{
		{"tank", "", "tank"},
		{"tank/", "", "tank/"},
		{"tank/a@s", "", "tank/a@s"},
		{"tank@s", "", "tank@s"},
		{"/dev/sda", "", "/dev/sda"},
		{"/srv/a:b@c", "", "/srv/a:b@c"},
		{"tank/a@12:00", "", "tank/a@12:00"},
		{"tank/a:b", "", "tank/a:b"},
		{"beta:tank", "beta", "tank"},
		{"beta:tank/a@s", "beta", "tank/a@s"},
		{"beta:tank/a@12:00", "beta", "tank/a@12:00"},
		{"beta:tank@12:00", "beta", "tank@12:00"},
		{"beta:/dev/sda", "beta", "/dev/sda"},
		{"ann@beta:tank", "ann@beta", "tank"},
		{"ann@beta:tank/a@s:1", "ann@beta", "tank/a@s:1"},
		{"ann@beta.example.org:/img", "ann@beta.example.org", "/img"},
		{"[::1]:tank", "::1", "tank"},
		{"[fe80::1%eth0]:tank/a", "fe80::1%eth0", "tank/a"},
		{"ann@[2001:db8::1]:tank", "ann@2001:db8::1", "tank"},
		{"[192.0.2.1]:tank", "192.0.2.1", "tank"},
		{"192.0.2.1:tank", "192.0.2.1", "tank"},
		{"tank@12:00", "", "tank@12:00"},
		{"tank@zxfer-2026-11-22T16:48:03Z", "", "tank@zxfer-2026-11-22T16:48:03Z"},
		{"beta:tank@zxfer-2026-11-22T16:48:03Z", "beta", "tank@zxfer-2026-11-22T16:48:03Z"},
		{"ann@beta:x12:00", "ann@beta", "x12:00"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			e, err := Parse(tt.in)
			require.NoError(t, err)
			require.Equal(t, Endpoint{Host: tt.host, Name: tt.name}, e)
			require.Equal(t, tt.host == "", e.Local())
			require.Equal(t, strings.HasPrefix(tt.name, "/"), e.Path())
			if tt.host != "192.0.2.1" {
				require.Equal(t, tt.in, e.String())
			}
		})
	}
}

func TestHostName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"tank": "", "beta:tank": "beta", "ann@beta:tank": "beta", "ann@[::1]:tank": "::1"} {
		e, err := Parse(in)
		require.NoError(t, err)
		require.Equal(t, want, e.HostName(), in)
	}
}

func TestRelative(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"./a.img": true, "../a:b.img": true, ".": true, "..": true, "./": true, "a/./b": false, ".a/b": false, "/a": false, "beta:tank": false} {
		e, err := Parse(in)
		require.NoError(t, err)
		require.Equal(t, want, e.Relative(), in)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in, text string
	}{
		{"", "empty endpoint"},
		{":tank", "no host before the colon"},
		{"beta:", "no name after the colon"},
		{"ann@:tank", "no host before the colon"},
		{"@beta:tank", "no user before"},
		{"ann@bob@beta:tank", "more than one"},
		{"-oProxyCommand=x:tank", "name must not start with"},
		{"ann@-oProxyCommand=x:tank", "name must not start with"},
		{"-ann@beta:tank", "name must not start with"},
		{"be ta:tank", "invalid character"},
		{"$(reboot):tank", "invalid character"},
		{"be;ta:tank", "invalid character"},
		{"[::1]tank", `no "]:"`},
		{"[::1", `no "]:"`},
		{"[::1]:", "no name after the colon"},
		{"beta:./disk.img", "must start with \"/\""},
		{"ann@[::1]:../disk.img", "must start with \"/\""},
		{"beta:.", "must start with \"/\""},
		{"[beta]:tank", "is not an IP address"},
		{"ann@[]:tank", "is not an IP address"},
		{"tank\x00", "control character"},
		{"beta:tank\n", "control character"},
		{"beta\x1b[31m:tank", "control character"},
		{"\xff:tank", "invalid UTF-8"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			e, err := Parse(tt.in)
			require.ErrorContains(t, err, tt.text)
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			require.Zero(t, e)
		})
	}
}

// FuzzParse expects that for any input, the host is neither an option nor several words, and String
// returns text that parses to the same endpoint.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "tank", "tank/a@s", "beta:tank", "ann@beta:tank/a@12:00", "[::1]:tank", "ann@[fe80::1%eth0]:/dev/sda",
		"tank@12:00", "-o:x", "a@b@c:d", "[192.0.2.1]:x", "[::ffff:192.0.2.1]:x", "/a:b", "a/b:c", ":", "@", "[", "[]:", "[::1]:a]:b", "a@/b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			require.Zero(t, e)
			return
		}
		require.NotEmpty(t, e.Name)
		if !e.Local() {
			require.NotEmpty(t, e.HostName())
			require.False(t, strings.HasPrefix(e.Host, "-") || strings.HasPrefix(e.HostName(), "-"))
			require.False(t, strings.ContainsAny(e.Host, " \t\n'\"`$;&|\\"))
		}
		again, err := Parse(e.String())
		require.NoError(t, err, e.String())
		require.Equal(t, e, again)
	})
}

// TestAddressWithoutName covers an IP address without ":NAME".
func TestAddressWithoutName(t *testing.T) {
	t.Parallel()
	for in, suggestion := range map[string]string{
		"10.77.0.2": "10.77.0.2:POOL", "10.77.0.2/tank/a": "10.77.0.2:tank/a", "10.77.0.2/": "10.77.0.2:POOL",
		"fd00::2": "[fd00::2]:POOL", "ann@fd00::2": "ann@[fd00::2]:POOL", "fe80::1%eth0": "[fe80::1%eth0]:POOL",
	} {
		_, err := Parse(in)
		require.Equal(t, fault.Usage, fault.ClassOf(err), in)
		require.Equal(t, "did you mean "+suggestion+"?", fault.HintOf(err), in)
		require.ErrorContains(t, err, "is an address without a dataset")
	}
	for _, in := range []string{"tank@10.0.0.1", "10.0.0.1:tank", "/10.0.0.1", "1.2.3", "tank/10.0.0.1"} {
		_, err := Parse(in)
		require.NoError(t, err, in)
	}
}
