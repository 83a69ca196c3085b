package zfs

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestParseImported has the output of OpenZFS 2.3.9.
func TestParseImported(t *testing.T) {
	t.Parallel()
	all, err := ParseImported("offsite\t5969228546841380297\tONLINE\t/run/zxfer/pools/5969228546841380297\tnone\ton\n"+
		"tank\t18446744073709551615\tSUSPENDED\t-\t-\toff\nusb\t7\tDEGRADED\t/run/zxfer/pools/8\tnone\toff\n", "/run/zxfer")
	require.NoError(t, err)
	require.Equal(t, []ImportedPool{
		{Name: "offsite", GUID: 5969228546841380297, Health: PoolOnline, Owned: true, ReadOnly: true},
		{Name: "tank", GUID: 1<<64 - 1, Health: PoolSuspended, Cached: true},
		{Name: "usb", GUID: 7, Health: "DEGRADED"}, // with the root of another GUID
	}, all)
	for _, bad := range []string{"tank\n", "tank\tx\tONLINE\t-\t-\toff\n", strings.Repeat("tank\t7\tONLINE\t-\t-\toff\n", MaxPools+1)} {
		_, err := ParseImported(bad, "/run/zxfer")
		require.Error(t, err)
	}
}

// TestParseAttached has the output of OpenZFS 2.3.9 for two disks whose pools have the same name.
func TestParseAttached(t *testing.T) {
	t.Parallel()
	out := `  pool: offsite
    id: 1165229305671715956
 state: ONLINE
action: The pool can be imported using its name or numeric identifier.
config:

	offsite     ONLINE
	  db        ONLINE

  pool: offsite
    id: 5969228546841380297
 state: DEGRADED
status: One or more devices were being resilvered.
action: The pool can be imported using its name or numeric identifier.
config:

	offsite     ONLINE
	  da        ONLINE
`
	require.Equal(t, []AttachedPool{
		{Name: "offsite", GUID: 1165229305671715956, State: PoolOnline},
		{Name: "offsite", GUID: 5969228546841380297, State: "DEGRADED"},
	}, ParseAttached(out))
	require.Empty(t, ParseAttached(""))
	require.Empty(t, ParseAttached("    id: 7\n state: ONLINE\n"))
	require.Len(t, ParseAttached(strings.Repeat("  pool: x\n    id: 7\n", MaxPools+1)), MaxPools)
	require.Equal(t, []AttachedPool{{Name: "x"}}, ParseAttached("  pool: x\n    id: -1\n"))
}

func TestPoolImportArgs(t *testing.T) {
	t.Parallel()
	i := PoolImport{GUID: 7, Directories: []string{"/dev/disk/by-id", "/dev/mapper"}}
	require.Equal(t, strings.Fields("import -N -o cachefile=none -R /run/zxfer/pools/7 -d /dev/disk/by-id -d /dev/mapper 7"), i.Args("/run/zxfer"))
	i.ReadOnly = true
	require.Equal(t, strings.Fields("import -N -o cachefile=none -R /run/zxfer/pools/7 -d /dev/disk/by-id -d /dev/mapper -o readonly=on 7"), i.Args("/run/zxfer"))
	require.Equal(t, []string{"import"}, FindAttachedArgs(nil))
}

func TestScrubbed(t *testing.T) {
	t.Parallel()
	at := time.FixedZone("", 3600)
	for text, want := range map[string]time.Time{
		"scrub repaired 0B in 00:00:00 with 0 errors on Thu Nov 26 09:37:33 2026":        time.Date(2026, 11, 26, 9, 37, 33, 0, at),
		"scrub repaired 4K in 1 days 02:03:04 with 2 errors on Sun Nov  1 00:00:00 2026": time.Date(2026, 11, 1, 0, 0, 0, 0, at),
		"scrub repaired 0B in 00:00:00 with 0 errors on Xxx Yyy 99 99:99:99 2026":        {},
		"scrub in progress since Thu Nov 26 09:37:33 2026":                               {},
		"scrub canceled on Thu Nov 26 09:37:33 2026":                                     {},
		"resilvered 1K in 00:00:00 with 0 errors on Thu Nov 26 09:37:33 2026":            {},
		"none requested": {},
		"":               {},
	} {
		s := Scan{Text: text}
		require.True(t, want.Equal(s.Scrubbed(at)), "%s: %s", text, s.Scrubbed(at))
	}
}

// FuzzAttached expects any text of disks to give pools without a panic, and never more than the limit.
func FuzzAttached(f *testing.F) {
	f.Add("  pool: offsite\n    id: 1165229305671715956\n state: ONLINE\naction: x\nconfig:\n\n\toffsite  ONLINE\n")
	f.Add("    id: 7\n  pool: \x1b[31m\n pool: a\n    id: 18446744073709551616\n state: \n")
	f.Fuzz(func(t *testing.T, text string) {
		all := ParseAttached(text)
		require.LessOrEqual(t, len(all), MaxPools)
		for _, p := range all {
			require.NotContains(t, p.Name+p.State, "\n")
		}
		s := Scan{Text: text}
		_ = s.Scrubbed(nil)
		imported, err := ParseImported(text, "/run/zxfer")
		require.True(t, err != nil || len(imported) <= MaxPools)
	})
}
