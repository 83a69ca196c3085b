package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/drill"
)

// TestDrillOfLyingCopy uses a copy whose host gives false answers, mostly about a missing file. If
// the source was read, only the true answer verifies the copy.
func TestDrillOfLyingCopy(t *testing.T) {
	t.Parallel()
	type query = files.Query
	type digest = files.Digest
	for name, tt := range map[string]struct {
		whole bool

		lie   func(q query, d digest) (digest, error)
		error string
	}{
		"nothing read, nothing reported": {lie: func(query, digest) (digest, error) { return digest{}, nil }, error: "differ from"},
		"no sums":                        {lie: func(_ query, d digest) (digest, error) { d.Parts = nil; return d, nil }, error: "differ from"},
		"sums of other files": {lie: func(_ query, d digest) (digest, error) {
			d.Parts[0], d.Parts[1] = d.Parts[1]+"0", d.Parts[0]
			return d, nil
		}, error: "differ from"},
		"more sums than there are parts": {whole: true, lie: func(_ query, d digest) (digest, error) { d.Parts = append(d.Parts, "0"); return d, nil }, error: "differ from"},
		"second pass is also false":      {lie: func(q query, d digest) (digest, error) { d.Listed = nil; return d, nil }, error: "differ from"},
		"only the second pass is false":  {lie: func(q query, d digest) (digest, error) { return lieWithin(q, d), nil }, error: "differ from"},
		"the second pass fails":          {lie: func(q query, d digest) (digest, error) { return d, failWithin(q) }, error: "differ from"},
		"paths outside in the second pass": {lie: func(q query, d digest) (digest, error) {
			if q.Within != 0 {
				d.Listed = append(d.Listed, files.File{Path: "../../etc/shadow"})
			}
			return d, nil
		}, error: "differ from"},
		"more files than it has":      {whole: true, lie: func(_ query, d digest) (digest, error) { d.Files, d.Read = 1<<63, 1<<63; return d, nil }, error: "local read 9223372036854775808 of"},
		"more bytes than it has":      {whole: true, lie: func(_ query, d digest) (digest, error) { d.Bytes = 1 << 63; return d, nil }, error: "local read"},
		"nothing read of a full copy": {whole: true, lie: func(_ query, d digest) (digest, error) { d.Read, d.Bytes = 0, 0; return d, nil }, error: "local read 0 of"},
		"uncounted problems": {whole: true, lie: func(_ query, d digest) (digest, error) {
			d.Problems = []files.Problem{{Path: "a", Why: "damaged"}}
			return d, nil
		}, error: "1 of its files cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _, there := drilled(t, &replicate.Drill{})
			if !tt.whole {
				require.NoError(t, os.Remove(filepath.Join(there, "a")))
			}
			r.lie = tt.lie
			d, err := r.drill(t, drill.Options{Sample: 1})
			require.Error(t, err)
			require.Equal(t, outcome.Failed, d.Outcome)
			require.Len(t, d.Copies, 2)
			for _, c := range d.Copies {
				require.Equal(t, outcome.Failed, c.Outcome)
				require.Equal(t, "NOT GOOD", c.DisplayOutcome())
				require.Contains(t, c.Error, tt.error)
				require.LessOrEqual(t, len(c.Differ), 20)
				if strings.Contains(c.Error, "cannot be read") {
					require.Equal(t, "scrub its pool: zpool scrub -w dst\nthen repair it from its source: zxfer heal --job j", c.Hint)
				}
			}
			require.NotNil(t, r.currentStatus().Drill)
		})
	}
}

func lieWithin(q files.Query, d files.Digest) files.Digest {
	if q.Within != 0 {
		return files.Digest{}
	}
	return d
}

func failWithin(q files.Query) error {
	if q.Within != 0 {
		return errors.New("no")
	}
	return nil
}

// TestDrillOfInventedSample uses a sample without files. If the copy claims to have read
// some, the source contradicts it and all files are read.
func TestDrillOfInventedSample(t *testing.T) {
	t.Parallel()
	r, _, there := drilled(t, &replicate.Drill{})
	// The changed file has the same size and time, so only reading it shows the difference.
	a := filepath.Join(there, "a")
	info, err := os.Stat(a)
	require.NoError(t, err)
	above, err := os.Stat(there)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(a, []byte("x"), 0o600))
	require.NoError(t, os.Chtimes(a, info.ModTime(), info.ModTime()))
	require.NoError(t, os.Chtimes(there, above.ModTime(), above.ModTime()))
	r.lie = func(q files.Query, d files.Digest) (files.Digest, error) {
		if q.Sample < 1 {
			d.Read, d.Bytes = 3, 3
		}
		return d, nil
	}
	d, err := r.drill(t, drill.Options{Sample: 1e-9})
	require.ErrorContains(t, err, "its files differ from")
	for _, c := range d.Copies {
		require.Equal(t, outcome.Failed, c.Outcome)
		require.Equal(t, 1.0, c.Sample)
	}
}

// TestDrillOfCopyWithStoredDigests uses a copy that stores each answer and then loses its files.
// It expects failed drills, because a drill chooses a new seed and the old answers do not match.
func TestDrillOfCopyWithStoredDigests(t *testing.T) {
	t.Parallel()
	r, _, there := drilled(t, &replicate.Drill{})
	var mu sync.Mutex
	kept := map[int]files.Digest{} // by part; both copies have the same files
	r.lie = func(q files.Query, d files.Digest) (files.Digest, error) {
		mu.Lock()
		defer mu.Unlock()
		if old, ok := kept[q.Within]; ok {
			return old, nil
		}
		kept[q.Within] = d
		return d, nil
	}
	_, err := r.drill(t, drill.Options{Sample: 1, Seed: 7})
	require.NoError(t, err)
	for _, f := range []string{"a", "b", "c"} {
		require.NoError(t, os.Remove(filepath.Join(there, f)))
	}
	_, err = r.drill(t, drill.Options{Sample: 1, Seed: 7})
	require.NoError(t, err, "with a repeated seed, the copy can repeat its answer")
	d, err := r.drill(t, drill.Options{Sample: 1})
	require.ErrorContains(t, err, "its files differ from")
	for _, c := range d.Copies {
		require.Equal(t, outcome.Failed, c.Outcome)
	}
}
