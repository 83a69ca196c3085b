package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// lastRelease names the fixtures of the last release: its flags, job file, records and output.
const lastRelease = "zxfer-0.9.0"

// TestKeepsLastReleaseFlags expects every command and flag of the last release, except --relay of the agent, with which
// zxfer itself started a relay of the same build.
func TestKeepsLastReleaseFlags(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(testenv.Data(t, lastRelease, "flags.txt"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line == "agent --relay\n" {
			continue
		}
		words := strings.Fields(line)
		path, flag := words[:len(words)-1], words[len(words)-1]
		cmd, rest, err := newRoot(&app{}).Find(path)
		require.NoError(t, err, line)
		require.Empty(t, rest, "no command %q", strings.Join(path, " "))
		cmd.InitDefaultHelpFlag()
		cmd.InitDefaultVersionFlag()
		require.NotNil(t, cmd.Flag(strings.TrimPrefix(flag, "--")), "%s has no flag %s", cmd.CommandPath(), flag)
	}
}

// TestReadsLastReleaseRecords reads the job file and the state directory of the last release.
// It expects each of its JSON fields and metrics.
func TestReadsLastReleaseRecords(t *testing.T) {
	t.Parallel()
	state := t.TempDir() // status needs a writable directory for its lock
	require.NoError(t, os.CopyFS(state, os.DirFS(testenv.Data(t, lastRelease, "state"))))
	run := func(args ...string) []byte {
		t.Helper()
		var out, stderr bytes.Buffer
		a := &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &stderr, now: func() time.Time { return time.Date(2026, 11, 25, 23, 15, 0, 0, time.UTC) }}
		args = append([]string{"replicate"}, append(args, "-c", testenv.Data(t, lastRelease, "job.toml"), "--state-dir", state)...)
		code := execute(t.Context(), a, args)
		require.Contains(t, []int{0, 1}, code, "%s", &stderr) // 1: the job has no timer
		return out.Bytes()
	}
	for name, args := range map[string][]string{"status.json": {"status", "--json"}, "log.json": {"log", "--json", "home"}} {
		text, err := os.ReadFile(testenv.Data(t, lastRelease, name))
		require.NoError(t, err)
		now := jsonFields(t, run(args...))
		for field := range jsonFields(t, text) {
			require.Contains(t, slices.Collect(maps.Keys(now)), field, "%s lacks a field of the last release", name)
		}
	}
	require.Contains(t, string(run("status")), "tank/home/alice")
	metrics, err := os.ReadFile(testenv.Data(t, lastRelease, "metrics.txt"))
	require.NoError(t, err)
	written := "\n" + string(run("metrics", "--stdout"))
	for _, name := range strings.Fields(string(metrics)) {
		require.Contains(t, written, "\n"+name+"{", "a metric of the last release is missing")
	}
	left, err := filepath.Glob(filepath.Join(state, "home", "*.new"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// jsonFields returns the paths of all fields in a stream of JSON values, such as
// ".jobs[].datasets[].target".
func jsonFields(t *testing.T, text []byte) map[string]bool {
	t.Helper()
	fields := map[string]bool{}
	var visit func(path string, v any)
	visit = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, value := range v {
				fields[path+"."+name] = true
				visit(path+"."+name, value)
			}
		case []any:
			for _, value := range v {
				visit(path+"[]", value)
			}
		}
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var v any
		require.NoError(t, d.Decode(&v))
		visit("", v)
	}
	require.NotEmpty(t, fields)
	return fields
}
