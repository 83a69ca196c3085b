package statedir

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
)

// No name makes a line of its own, or a file that the collector cannot read.
func FuzzMetrics(f *testing.F) {
	for _, odd := range []string{"home", "a\nevil 1", `a"} 1`, `\`, `\n`, "\xff", "\r", "{", "ä"} {
		f.Add(odd, "tank/a", "near")
		f.Add("home", odd, odd)
	}
	f.Fuzz(func(t *testing.T, job, source, target string) {
		of := func(job, source, target string) string {
			return string(Metrics([]*State{{Job: job, LastRun: &Run{Started: time.Unix(1, 0), Ended: time.Unix(2, 0)},
				State: replicate.State{Datasets: map[string]*replicate.DatasetState{source: {Targets: map[string]*replicate.CopyState{target: {Attempt: replicate.Attempt{Success: time.Unix(1, 0)}}}}}}}}).Bytes())
		}
		got, want := of(job, source, target), of("j", "s", "t")
		require.True(t, utf8.ValidString(got))
		require.Equal(t, strings.Count(want, "\n"), strings.Count(got, "\n"))
		if !utf8.ValidString(job) || !utf8.ValidString(source) || !utf8.ValidString(target) {
			return
		}
		lines := strings.Split(got, "\n")
		label := strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")
		for i, l := range strings.Split(want, "\n") {
			if name, labels, ok := strings.Cut(l, "{"); ok && !strings.HasPrefix(l, "#") {
				rest, ok := strings.CutPrefix(lines[i], name+`{job="`)
				require.True(t, ok, lines[i])
				require.True(t, strings.HasPrefix(label.Replace(rest), job+`"`), lines[i])
				require.Equal(t, labels[strings.LastIndex(labels, "}"):], rest[strings.LastIndex(rest, "}"):])
			}
		}
	})
}
