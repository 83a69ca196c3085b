package scripts_test

import (
	"cmp"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// vulnerabilities compares the modules in zxfer, including Go's standard library, with a
// database of known vulnerabilities. If zxfer contains affected code, it returns the output of
// govulncheck. Otherwise, it returns "".
func vulnerabilities(t *testing.T, database string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "zxfer")
	for _, args := range [][]string{
		{"build", "-buildvcs=false", "-o", program, "./cmd/zxfer"}, // without symbols, all code of a module would count
		{"tool", "-modfile=scripts/tools/go.mod", "govulncheck", "-db", database, "-mode=binary", program},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); args[0] == "tool" && errors.As(err, &exit) && exit.ExitCode() == 3 {
			return string(out)
		}
		require.NoError(t, err, "go %s\n%s", strings.Join(args, " "), out)
	}
	return ""
}

func TestNoKnownVulnerabilities(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not at the quick level: needs a network")
	}
	database := cmp.Or(os.Getenv("ZXFER_VULNDB"), "https://vuln.go.dev")
	if strings.HasPrefix(database, "https:") {
		answer, err := (&http.Client{Timeout: 20 * time.Second}).Get(database + "/index/db.json")
		if err != nil {
			t.Skipf("cannot reach the vulnerability database (set ZXFER_VULNDB to another one): %v", err)
		}
		answer.Body.Close()
	}
	require.Empty(t, vulnerabilities(t, database))
}

// TestVulnerabilityIsFound lists a vulnerability for a module of zxfer, and expects the check
// to find it if zxfer contains the code.
func TestVulnerabilityIsFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not at the quick level: builds govulncheck")
	}
	for name, tt := range map[string]struct {
		symbol string
		want   string
	}{
		"linked code":     {"Command.Execute", "GO-2099-0001"},
		"code not linked": {"Command.ThatZxferLacks", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for path, text := range map[string]string{
				"index/db.json":      `{"modified":"2099-01-01T00:00:00Z"}`,
				"index/modules.json": `[{"path":"github.com/spf13/cobra","vulns":[{"id":"GO-2099-0001","modified":"2099-01-01T00:00:00Z"}]}]`,
				"ID/GO-2099-0001.json": `{"schema_version":"1.3.1","id":"GO-2099-0001","modified":"2099-01-01T00:00:00Z","published":"2099-01-01T00:00:00Z",
					"summary":"made up","details":"made up","affected":[{"package":{"name":"github.com/spf13/cobra","ecosystem":"Go"},
					"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],
					"ecosystem_specific":{"imports":[{"path":"github.com/spf13/cobra","symbols":["` + tt.symbol + `"]}]}}],
					"database_specific":{"url":"https://pkg.go.dev/vuln/GO-2099-0001"}}`,
			} {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
			}
			output := vulnerabilities(t, "file://"+dir)
			if tt.want == "" {
				require.Empty(t, output)
			} else {
				require.Contains(t, output, tt.want)
			}
		})
	}
}
