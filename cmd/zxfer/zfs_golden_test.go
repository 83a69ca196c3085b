package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zxfer/pkg/testenv"
)

// changing replaces what differs between two runs of the same commands.
var changing = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`/tmp/[A-Za-z0-9_./-]*(state|jobs\.toml|replicate\.toml)`), "FILE"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T_ ]\d\d[:-]\d\d([:-]\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?|\d{8}T\d{6}Z|(Mon|Tue|Wed|Thu|Fri|Sat|Sun)? ?\d\d:\d\d(:\d\d)?`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{16,64}\b|\b\d{6,20}\b`), "NUMBER"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?([KMGT]i?)?B(/s|it/s)?\b|\b\d+(\.\d+)? bytes`), "SIZE"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?(ms|µs|us|min|s|h|d)( \d+ ?(s|min|h))?\b`), "SPAN"},
	{regexp.MustCompile(`(\d+\.){3}\d+:\d+`), "ADDRESS"},
	{regexp.MustCompile(`zfs \d+\.\d+\S+`), "zfs VERSION"},
	{regexp.MustCompile(`libzfs_core \(pyzfs[^)]*\)`), "libzfs_core (pyzfs)"},
	{regexp.MustCompile(`(?m)^(zxfer_[a-z_]+(?:\{.*\})?) [-+0-9.e]+$`), "$1 VALUE"},
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
	{regexp.MustCompile(`  +`), "  "},
}

// transcript collects commands with their exit codes and outputs.
type transcript struct{ text strings.Builder }

func (s *transcript) add(argv []string, o cmdResult) {
	fmt.Fprintf(&s.text, "$ %s\n", strings.Join(argv, " "))
	s.text.WriteString(o.stdout)
	for line := range strings.Lines(o.stderr) {
		s.text.WriteString("| " + line)
	}
	fmt.Fprintf(&s.text, "exit %d\n\n", o.code)
}

// normal returns the transcript with names for what changes.
func (s *transcript) normal(replace ...string) string {
	text := strings.NewReplacer(replace...).Replace(s.text.String())
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.name)
	}
	return sortEnds(text)
}

// sortEnds sorts the lines about ended streams of each command: small streams of several datasets end in any order.
func sortEnds(text string) string {
	lines := strings.Split(text, "\n")
	for from := 0; from < len(lines); {
		to := from + 1
		for to < len(lines) && !strings.HasPrefix(lines[to], "$ ") {
			to++
		}
		var at []int
		var ends []string
		for i := from; i < to; i++ {
			if strings.HasPrefix(lines[i], "| ") && strings.Contains(lines[i], ": done, SIZE in SPAN") {
				at, ends = append(at, i), append(ends, lines[i])
			}
		}
		slices.Sort(ends)
		for k, i := range at {
			lines[i] = ends[k]
		}
		from = to
	}
	return strings.Join(lines, "\n")
}

// TestZFSGoldenLife compares what zxfer prints during the life of a copy with its golden copy: plans, transfers,
// comparisons, a job with its records and metrics, a switch, a restore, and refusals.
func TestZFSGoldenLife(t *testing.T) {
	lab(t)
	if !hasSnapshotsChanged() {
		t.Skip("plans for OpenZFS 2.1 differ")
	}
	s := &transcript{}
	src, dst := dataset(t)
	zxfer(t, "compare", alphaPool, "beta:"+betaPool) // copies zxfer to beta if no other test did
	zxferAt := func(args ...string) {
		t.Helper()
		s.add(append([]string{"zxfer"}, args...), zxfer(t, args...))
	}
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "create", "-V", "1M", src+"/vol")
	fill(t, src+"/a", "file", 256<<10)
	zfsCmd(t, "snapshot", "-r", src+"@one")

	copied := dst + "/copy"
	zfsCmd(t, "create", "-o", "mountpoint=none", dst)
	zxferAt("send", "-n", "-R", "--parallel", "1", src, "beta:"+copied)
	zxferAt("send", "-R", "--parallel", "1", src, "beta:"+copied)
	zxferAt("send", "-R", "--parallel", "1", src, "beta:"+copied)
	fill(t, src+"/a", "more", 64<<10)
	zfsCmd(t, "snapshot", "-r", src+"@two")
	zxferAt("send", "-n", "-R", "--parallel", "1", src, "beta:"+copied)
	zxferAt("send", "-R", "--parallel", "1", "--verify", src, "beta:"+copied)
	zxferAt("compare", src, "beta:"+copied)
	zfsCmd(t, "snapshot", copied+"/a@theirs")
	zfsCmd(t, "snapshot", src+"/a@three")
	zxferAt("send", src+"/a", "beta:"+copied+"/a")
	zxferAt("send", "-n", "--rollback", src+"/a", "beta:"+copied+"/a")
	zxferAt("compare", src, "beta:"+copied)
	zxferAt("restore", "-n", "beta:"+copied+"/a", src+"-restored")
	zxferAt("restore", "beta:"+copied+"/a", src+"-restored")
	t.Cleanup(func() { cleanUp(src + "-restored") })
	zxferAt("send", src+"-nothing", "beta:"+copied)
	zxferAt("send", src, "beta:nopool/x")

	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
parallel = 1
mount_below = ["/tmp/zxfer-lab"]
snapshots.take = "{job}-%%Y%%m%%dT%%H%%M%%SZ"
retention.last = 2
[[job.target]]
name = "near"
to = "beta:%s/job"
`, src, dst))
	at := func(verb string, args ...string) {
		t.Helper()
		o := zxfer(t, append([]string{"replicate", verb, "-c", r.file, "--state-dir", r.state}, args...)...)
		s.add(append([]string{"zxfer", "replicate", verb}, args...), o)
	}
	at("check", "home")
	at("run", "home")
	nextSecond(t)
	at("run", "home")
	at("status")
	at("log", "home")
	at("holds")
	at("prune", "-n", "home")
	at("drill", "home")
	at("metrics", "--stdout")
	at("switch", "-n", "home")
	nextSecond(t)
	at("switch", "--mountpoint", "none", "home")
	at("status")
	testenv.Golden(t, filepath.Join("testdata", "golden", "life.txt"), s.normal(r.file, "FILE", r.state, "STATE", src, "SRC", dst, "DST"))
}
