package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// FuzzMetrics expects that no name adds a line, or makes the file invalid for the collector.
func FuzzMetrics(f *testing.F) {
	for _, odd := range []string{"home", "a\nevil 1", `a"} 1`, `\`, `\n`, "\xff", "\r", "{", "ä"} {
		f.Add(odd, "tank/a", "near")
		f.Add("home", odd, odd)
	}
	f.Fuzz(func(t *testing.T, job, source, target string) {
		of := func(job, source, target string) string {
			return string(recordedMetrics([]*statedir.State{{Job: job, LastRun: &statedir.Run{Started: time.Unix(1, 0), Ended: time.Unix(2, 0)},
				State: replicate.State{Datasets: map[string]*replicate.DatasetState{source: {Targets: map[string]*replicate.CopyState{target: {Attempt: replicate.Attempt{Success: time.Unix(1, 0)}}}}}}}}).bytes())
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

func TestMetrics(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	st := &statedir.State{Job: `a"b`, State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}, LastRun: &statedir.Run{Started: at, Ended: at.Add(3 * time.Second), Outcome: outcome.Done}}
	st.Copy("tank/a", "near").Success = at
	st.Copy("tank/b", "near").Error = "broken"
	text := string(recordedMetrics([]*statedir.State{st}).bytes())
	for _, want := range []string{
		"# TYPE zxfer_replicate_last_run_success gauge\nzxfer_replicate_last_run_success{job=\"a\\\"b\"} 1\n",
		"zxfer_replicate_last_run_duration_seconds{job=\"a\\\"b\"} 3\n",
		fmt.Sprintf("zxfer_replicate_dataset_last_success_seconds{job=\"a\\\"b\",source=\"tank/a\",target=\"near\"} %d\n", at.Unix()),
		"zxfer_replicate_dataset_failed{job=\"a\\\"b\",source=\"tank/b\",target=\"near\"} 1\n",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "last_success_seconds{job=\"a\\\"b\",source=\"tank/b\"", "never is not 1970")
}
