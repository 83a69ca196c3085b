package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
)

// Which of both is received into and rolled back is what the job file says, else what
// their snapshots say; and it is never what somebody may write to.
func TestWhatIsHealedThrough(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		source, target         []string // snapshots newer than what both have
		known, bad, readonly   bool     // bad: the source is damaged; readonly: the target
		sourceReadonly, toward bool     // toward: the target is received into
		want                   string
	}{
		"a job's source":            {known: true, bad: true, readonly: true, toward: true},
		"a job's copy":              {known: true, readonly: true, toward: true},
		"a job's read-only source":  {known: true, readonly: true, sourceReadonly: true, toward: true},
		"a job's live copy":         {known: true, bad: true, want: "is not read-only"},
		"a job's copy is ahead":     {target: []string{"x"}, known: true, bad: true, readonly: true, want: "newer than those of"},
		"as typed":                  {bad: true, readonly: true, toward: true},
		"both live":                 {bad: true, want: "is not read-only"},
		"typed, the copy is ahead":  {target: []string{"x"}, readonly: true, want: "is not read-only"},
		"typed, both are live":      {source: []string{"x"}, want: "is not read-only"},
		"they went separate ways":   {source: []string{"x"}, target: []string{"y"}, readonly: true, want: "separate ways"},
		"typed the other way round": {sourceReadonly: true, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, map[string][]string{"src/a": {"1"}, "dst": nil})
			_, err := RunSend(t.Context(), request(nil), hosts.New(w), silent{})
			require.NoError(t, err)
			for dataset, more := range map[string][]string{"src/a": tt.source, "dst/a": tt.target} {
				for _, s := range more {
					require.NoError(t, w.host.Snapshot(t.Context(), []string{dataset + "@" + s}))
				}
			}
			w.host.Set("dst/a", "readonly", map[bool]string{true: "on", false: "off"}[tt.readonly])
			w.host.Set("src/a", "readonly", map[bool]string{true: "on", false: "off"}[tt.sourceReadonly])
			c := Copy{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/a"}, Known: tt.known}
			h := &healing{req: Heal{Copies: []Copy{c}}, at: hosts.New(w), rep: silent{}}
			damaged := "dst/a"
			if tt.bad {
				damaged = "src/a"
			}
			out := &HealedDataset{Dataset: damaged}
			err = h.source(t.Context(), out)
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			_, target := out.pair.ends()
			require.Equal(t, tt.toward, target.Name == "dst/a")
		})
	}
}
