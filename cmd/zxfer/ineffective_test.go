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
		"wire for local send":             {[]string{"send", "--wire", "tls", "tank/a", "pool"}, "--wire has no effect if source and target are on the same host"},
		"streams within one remote host":  {[]string{"send", "--streams", "2", "b:tank/a", "b:pool"}, "--streams has no effect if"},
		"compress for local copy":         {[]string{"dev", "--compress", "off", "/dev/a", "/dev/b"}, "--compress has no effect if"},
		"verify-only with delta":          {[]string{"dev", "--verify-only", "--delta", "/dev/a", "b:/dev/b"}, "--delta has no effect with --verify-only"},
		"verify-only with wire":           {[]string{"dev", "--verify-only", "--wire", "tls", "/dev/a", "b:/dev/b"}, "--wire has no effect with --verify-only"},
		"unknown check of send":           {[]string{"send", "--skip-check", "spaec", "tank/a", "b:pool"}, `--skip-check "spaec": there is no such check`},
		"unknown check of dev":            {[]string{"dev", "--skip-check", "x", "/dev/a", "b:/dev/b"}, `--skip-check "x": there is no such check`},
		"quick with time":                 {[]string{"doctor", "--quick", "--time", "2s"}, "--time has no effect with --quick"},
		"quick with measurement":          {[]string{"doctor", "--quick", "--only", "memory"}, "--only memory is a measurement"},
		"doctor recursive without target": {[]string{"doctor", "-R", "b"}, "--recursive has no effect without SRC and TARGET"},
		"doctor wire without remote host": {[]string{"doctor", "--wire", "tls"}, "--wire has no effect if source and target are on the same host"},
		"doctor rsh without remote host":  {[]string{"doctor", "-e", "ssh -v", "/mnt"}, "--rsh has no effect without a remote host"},
		"doctor with one pool":            {[]string{"doctor", "b:pool"}, "b:pool"},
		"facts with dial":                 {[]string{"doctor", "--facts", "x", "--dial", "source"}, "--dial has no effect with --facts"},
		"print-allow with facts":          {[]string{"doctor", "--print-allow", "--facts", "file"}, "--facts has no effect with --print-allow without SRC and TARGET"},
		"print-allow with only":           {[]string{"doctor", "--print-allow", "--only", "platform"}, "--only has no effect with --print-allow without SRC and TARGET"},
		"print-allow with json":           {[]string{"doctor", "--print-allow", "--json", "tank/a", "b:pool"}, "--json has no effect with --print-allow"},
		"offline with json":               {[]string{"replicate", "check", "--offline", "--json"}, "--json has no effect with --offline"},
		"overwrite without output file":   {[]string{"replicate", "import", "--overwrite", "x"}, "--overwrite has no effect without -o"},
		"cron with root":                  {[]string{"replicate", "install", "--cron", "--root", "/x"}, "--root has no effect with --cron"},
		"too many arguments":              {[]string{"version", "now"}, `version takes no arguments: "now"`},
		"unknown shell":                   {[]string{"completion", "tcsh"}, "bash, zsh or fish"},
		"log of two jobs":                 {[]string{"replicate", "log", "a", "b"}, "zxfer: log requires one argument"},
		"relative audit path":             {[]string{"replicate", "authorize", "--allow", "send=tank", "--key", "ineffective_test.go", "--audit", "log"}, `--audit: "log" is not an absolute path`},
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
