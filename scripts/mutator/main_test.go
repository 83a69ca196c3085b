package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArguments(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"--sample", "20", "--seed", "7", "--tests", "pkg/zfs/...", "--skip", "^TestSlow", "pkg/zfs:^gate", "./pkg/policy"})
	require.NoError(t, err)
	require.Equal(t, options{sample: 20, seed: 7, tests: []string{"./pkg/zfs/..."}, skip: regexp.MustCompile("^TestSlow"), packages: []selected{
		{"./pkg/zfs", regexp.MustCompile("^gate")}, {"./pkg/policy", regexp.MustCompile("")},
	}}, o)
	for name, bad := range map[string][]string{
		"no package":        nil,
		"unknown flag":      {"--jobs", "2", "pkg/plan"},
		"negative sample":   {"--sample", "-1", "pkg/plan"},
		"no number":         {"--seed", "x", "pkg/plan"},
		"malformed pattern": {"pkg/plan:("},
	} {
		_, err := parse(bad)
		require.Error(t, err, name)
	}
}

// Each mutant of a small module has the expected outcome. The check does not change its files.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"go.mod": "module example.org/m\n\ngo 1.26\n",
		"m.go": `package m

import "errors"

func Sum(all []int) (sum int) {
	for _, n := range all {
		sum += n
	}
	return sum
}

func Check(n, most int) error {
	if n < 0 || n > most {
		return errors.New("out of range")
	}
	return nil
}

func Down(n int) int {
	for n > 0 {
		n--
	}
	return n
}

func unused(a, b uint) uint { return a<<2 - b }
`,
		"other.go": "package m\n\nfunc other() bool { return len(\"\") == 0 }\n",
		"m_test.go": `package m

import "testing"

func Test(t *testing.T) {
	if Sum([]int{1, 2}) != 3 || Check(1, 2) != nil || Check(3, 2) == nil || Down(3) != 0 {
		t.Fatal()
	}
}
`,
	}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	var out bytes.Buffer
	require.NoError(t, check(t.Context(), &out, io.Discard, selected{".", regexp.MustCompile("^m[.]go$")}, options{}))
	require.Equal(t, `example.org/m/m.go:13:5: survived: always false: n < 0
example.org/m/m.go:13:5: survived: <= instead of <: n < 0
example.org/m/m.go:13:14: survived: >= instead of >: n > most
example.org/m/m.go:23:9: survived: returns the zero value for n
example.org/m/m.go:26:38: not covered: returns the zero value for a<<2 - b
example.org/m/m.go:26:38: not covered: + instead of -: a<<2 - b
example.org/m: 14 mutants: 7 killed, 4 survived, 2 not covered, 1 timed out: score 57.1 %
`, out.String())
	for name, text := range files {
		now, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, text, string(now))
	}
}
