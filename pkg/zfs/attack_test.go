package zfs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// TestGateRefusesAttacks sends every attack of zfstest through the gate of the planned receive, and
// expects refusals. cmd/zxfer sends some of them through zxfer.
func TestGateRefusesAttacks(t *testing.T) {
	t.Parallel()
	stream := func(name string) zfstest.Stream { return zfstest.ParseStream(t, zfs.Sampled(t, name+".source")) }
	f := zfstest.Forger{
		Full: stream("lec-full"), Increment: stream("lec-range"), Other: stream("plain-full"), Raw: stream("raw-full"),
		Foreign: "vault/secret", ForeignGUID: 77, Mountpoint: "/root/.ssh",
	}
	rest := f.Full.Changed(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureResuming) })
	for _, planned := range []struct {
		name    string
		stream  zfstest.Stream
		resumed bool
		attacks []zfstest.Attack
	}{
		{"full", f.Full, false, f.AgainstFull()},
		{"records", f.Full, false, f.RecordsAgainstFull()},
		{"incremental", f.Increment, false, f.AgainstIncrement()},
		{"resume", rest, true, f.AgainstResume(rest, f.Full)},
		{"raw", f.Raw, false, f.AgainstRaw()},
	} {
		spec := zfs.Expected(t, planned.stream.Bytes())
		spec.Arrival.Resumed = planned.resumed
		_, err := zfs.Pass(t, spec, planned.stream.Bytes(), 4096)
		require.NoError(t, err, "%s: the planned stream passes", planned.name)
		for _, a := range planned.attacks {
			t.Run(planned.name+": "+a.Name, func(t *testing.T) {
				t.Parallel()
				for _, size := range []int{311, 4096} { // an odd size judges all bytes, an even size skips those that need no judgement
					passed, err := zfs.Pass(t, spec, a.Stream, size)
					if a.Says == "" {
						require.NoError(t, err, "zfs receive or the end of the transfer refuses it")
						continue
					}
					require.ErrorContains(t, err, a.Says)
					require.Equal(t, a.Begins, passed >= 3*zfs.RecordSize, "%d bytes passed: those of planned streams only", passed)
				}
			})
		}
	}
}
