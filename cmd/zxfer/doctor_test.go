package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/testenv"
)

func runMain(t *testing.T, args ...string) cmdResult {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, now: time.Now}, args)
	return cmdResult{code, stdout.String(), stderr.String()}
}

// TestDoctorFacts compares doctor's findings for each machine of testdata/machines with
// testdata/doctor of this package.
func TestDoctorFacts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(testenv.Data(t, "machines", "*.facts"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 12)
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".facts"), func(t *testing.T) {
			t.Parallel()
			o := runMain(t, "doctor", "-v", "--facts", f)
			require.Empty(t, o.stderr)
			testenv.Golden(t, filepath.Join("testdata", "doctor", strings.TrimSuffix(filepath.Base(f), ".facts")+".golden"), o.stdout)
			require.Equal(t, map[bool]int{true: 3, false: 0}[strings.Contains(o.stdout, "\n  fail ")], o.code)
		})
	}
}

// TestDoctorCaptureAndFacts captures the facts of this machine. It expects the same findings
// from the captured file, and no secrets in it.
func TestDoctorCaptureAndFacts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "facts.txt")
	live := runMain(t, "doctor", "--quick", "--json", "--capture", file)
	require.Contains(t, []int{0, 3}, live.code, live.String())
	replayed := runMain(t, "doctor", "--json", "--facts", file)
	require.Equal(t, live.stdout, replayed.stdout)
	require.Equal(t, live.code, replayed.code)

	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, secret := range []string{"PRIVATE KEY", "ssh-ed25519", "ssh-rsa", "password"} {
		require.NotContains(t, string(raw), secret)
	}
	var r doctor.Report
	require.NoError(t, json.Unmarshal([]byte(live.stdout), &r))
	require.Equal(t, doctor.Schema, r.Schema)
	require.NotEmpty(t, r.Findings)
	require.Nil(t, r.Expected)
	require.Empty(t, r.Ceilings, "--quick measures nothing")
}

// TestFactsHaveNoAddresses expects a facts file, which users publish, to contain no host
// addresses.
func TestFactsHaveNoAddresses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "facts.txt")
	require.NoError(t, writeFacts(file, []doctor.Capture{
		{Role: "source", Host: "root@203.0.113.5", Text: []byte("-- etc/os-release --\nNAME=Debian\n")},
		{Role: "target", Host: "backup@2001:db8::7", Text: []byte("-- etc/os-release --\nNAME=Debian\n")},
		{Role: "transfer", Host: "-", Text: []byte("-- zxfer/transfer.json --\n{\"source\": {\"name\": \"root@203.0.113.5\"}, \"plan\": {\"notes\": [\"backup@[2001:db8::7]:vault has none\"]}}\n")},
	}))
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, `zxfer facts v1
source root@source
target backup@target
transfer -
-- source/etc/os-release --
NAME=Debian
-- target/etc/os-release --
NAME=Debian
-- transfer/zxfer/transfer.json --
{"source": {"name": "root@source"}, "plan": {"notes": ["backup@target:vault has none"]}}
`, string(raw))
}

func TestDoctorMeasures(t *testing.T) {
	t.Parallel()
	o := runMain(t, "doctor", "--time", "100ms", "--only", "memory,loopback-signed,nc-zero", "--json")
	require.Zero(t, o.code, o.String())
	var r doctor.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
	require.Empty(t, r.Findings)
	require.Len(t, r.Ceilings, 3)
	for _, c := range r.Ceilings {
		if c.Skipped == "" {
			require.Positive(t, c.BytesPerSecond, c.ID)
		}
	}
}

// TestDoctorPaths measures a path, alone or as one of two ends. It expects no leftover files.
func TestDoctorPaths(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"one path": {""}, "two paths": {"file", ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 5<<20), 0o600))
			argv := []string{"doctor", "--time", "100ms", "--only", "path-read,path-write", "--json"}
			for _, a := range args {
				argv = append(argv, filepath.Join(dir, a))
			}
			o := runMain(t, argv...)
			require.Zero(t, o.code, o.String())
			var r doctor.Report
			require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
			require.Len(t, r.Ceilings, 2)
			for i, id := range []string{"path-read", "path-write"} {
				require.Equal(t, id, r.Ceilings[i].ID)
				require.Positive(t, r.Ceilings[i].BytesPerSecond, o.stdout)
			}
			require.NotNil(t, r.Expected)
			require.LessOrEqual(t, r.Expected.BytesPerSecond, r.Ceilings[1].BytesPerSecond)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1)
		})
	}
	o := runMain(t, "doctor", "--time", "100ms", "--only", "path-read", filepath.Join(t.TempDir(), "nosuch"))
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "nosuch: file does not exist\nhint: check the path")
}

// TestDevMeasure expects an estimate before a copy, or instead of it with -n.
func TestDevMeasure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")
	require.NoError(t, os.WriteFile(src, bytes.Repeat([]byte("zxfer"), 1<<20), 0o600))
	o := runMain(t, "dev", "-n", "--measure", src, dst)
	require.Zero(t, o.code, o.String())
	require.Contains(t, o.stdout, "read of the path")
	require.Contains(t, o.stdout, "\nexpected: ")
	require.NoFileExists(t, dst)
	o = runMain(t, "dev", "--measure", "--json", src, dst)
	require.Zero(t, o.code, o.String())
	var r dev.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
	require.Len(t, r.Ceilings, 2)
	require.Positive(t, r.Expected.BytesPerSecond)
	require.EqualValues(t, 5<<20, r.Expected.Bytes)
	require.Equal(t, "done", r.Outcome)
	require.NotNil(t, r.Findings)
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown ID":                 {[]string{"--only", "nosuch"}, `there is no check or measurement "nosuch"`},
		"time out of range":          {[]string{"--time", "1h"}, "--time 1h"},
		"no host":                    {[]string{":tank"}, "no host"},
		"missing facts file":         {[]string{"--facts", "none.txt"}, "--facts: there is no file none.txt"},
		"facts with host":            {[]string{"--facts", "x", "beta"}, "--facts cannot be combined"},
		"print-allow without target": {[]string{"--print-allow", "beta"}, "--print-allow needs SRC and TARGET"},
		"host starts with dash":      {[]string{"-beta:tank"}, "unknown shorthand"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := runMain(t, append([]string{"doctor"}, c.args...)...)
			require.Equal(t, 2, o.code)
			require.Contains(t, o.stderr, c.want)
			require.Empty(t, o.stdout)
		})
	}
	file := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(file, []byte("something else\n"), 0o600))
	o := runMain(t, "doctor", "--facts", file)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "zxfer doctor --capture")
}
