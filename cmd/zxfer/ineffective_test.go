package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlagsWithoutEffect expects zxfer to refuse flags that would have no effect.
func TestFlagsWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a wire within this host":         {[]string{"send", "--wire", "tls", "tank/a", "pool"}, "--wire has no effect if source and target are on the same host"},
		"connections within another host": {[]string{"send", "--streams", "2", "b:tank/a", "b:pool"}, "--streams has no effect if"},
		"compression of a local copy":     {[]string{"dev", "--compress", "off", "/dev/a", "/dev/b"}, "--compress has no effect if"},
		"a comparison that copies":        {[]string{"dev", "--verify-only", "--delta", "/dev/a", "b:/dev/b"}, "--delta has no effect with --verify-only"},
		"a comparison and a wire":         {[]string{"dev", "--verify-only", "--wire", "tls", "/dev/a", "b:/dev/b"}, "--wire has no effect with --verify-only"},
		"a check that is none":            {[]string{"send", "--skip-check", "spaec", "tank/a", "b:pool"}, `--skip-check "spaec": there is no such check`},
		"a check of devices that is none": {[]string{"dev", "--skip-check", "x", "/dev/a", "b:/dev/b"}, `--skip-check "x": there is no such check`},
		"quick and a time":                {[]string{"doctor", "--quick", "--time", "2s"}, "--time has no effect with --quick"},
		"quick and a measurement":         {[]string{"doctor", "--quick", "--only", "memory"}, "--only memory is a measurement"},
		"doctor without a pair":           {[]string{"doctor", "-R", "b"}, "--recursive has no effect without SRC and TARGET"},
		"doctor without a link":           {[]string{"doctor", "--wire", "tls"}, "--wire has no effect if source and target are on the same host"},
		"doctor without a host":           {[]string{"doctor", "-e", "ssh -v", "/mnt"}, "--rsh has no effect without a remote host"},
		"doctor of a pool alone":          {[]string{"doctor", "b:pool"}, "b:pool"},
		"facts and a wire":                {[]string{"doctor", "--facts", "x", "--dial", "source"}, "--dial has no effect with --facts"},
		"allow as JSON":                   {[]string{"doctor", "--print-allow", "--json", "tank/a", "b:pool"}, "--json has no effect with --print-allow"},
		"offline JSON":                    {[]string{"replicate", "check", "--offline", "--json"}, "--json has no effect with --offline"},
		"overwrite standard output":       {[]string{"replicate", "import", "--overwrite", "x"}, "--overwrite has no effect without -o"},
		"cron below a root":               {[]string{"replicate", "install", "--cron", "--root", "/x"}, "--root has no effect with --cron"},
		"too many for a verb":             {[]string{"version", "now"}, `version takes no arguments: "now"`},
		"a shell that is none":            {[]string{"completion", "tcsh"}, "bash, zsh or fish"},
		"a log of two":                    {[]string{"replicate", "log", "a", "b"}, "zxfer: log requires one argument"},
		"an audit file by chance":         {[]string{"replicate", "authorize", "--allow", "send=tank", "--key", "ineffective_test.go", "--audit", "log"}, `--audit: "log" is not an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := runMain(t, c.args...)
			require.Equal(t, 2, o.code, "%s", o)
			require.Contains(t, o.stderr, c.want)
			require.Empty(t, o.stdout)
		})
	}
}
