package statedir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The directory may be a user's: what it holds is read by root. Whatever is
// there is a state of this job, or an error that names the file.
func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"job":"other","datasets":null}`))
	f.Add([]byte(`{"job":"j","datasets":{"tank/a":null,"":{"targets":{"x":null}}}}` + "\n"))
	f.Add([]byte("{\"id\":\"1\"}\n\n{}\nnull\n[]\n{\"id\":"))
	f.Add([]byte("{\"targets\":[null]}"))
	f.Add([]byte("{\"last_run\":{\"targets\":[null,{}]}}"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "j"), 0o700))
		for _, name := range []string{"state.json", "runs.jsonl"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "j", name), b, 0o600))
		}
		s := Peek(dir, "j")
		runs, err := s.Runs(3)
		require.NoError(t, err)
		require.LessOrEqual(t, len(runs), 3)
		for _, r := range runs {
			require.NotContains(t, r.Targets, (*TargetRun)(nil))
		}
		st, err := s.State()
		if err != nil {
			require.ErrorContains(t, err, filepath.Join(dir, "j", "state.json"))
			return
		}
		require.Equal(t, "j", st.Job)
		if st.LastRun != nil {
			require.NotContains(t, st.LastRun.Targets, (*TargetRun)(nil))
		}
		require.NotNil(t, st.Datasets)
		for name, d := range st.Datasets {
			require.NotNil(t, d, name)
			for target, a := range d.Targets {
				require.NotNil(t, a, target)
			}
		}
		require.NoError(t, s.Save(st))
		again, err := s.State()
		require.NoError(t, err)
		require.Equal(t, st, again)
	})
}
