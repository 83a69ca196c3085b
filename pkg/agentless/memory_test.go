package agentless

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// maxLieMemory limits the memory that one request to a lying host without zxfer may cost, in bytes.
const maxLieMemory = 256 << 20

// plainRequests returns a request of each operation that a host without zxfer runs.
func plainRequests() map[string]*hosts.Request {
	guid := uint64(7)
	request := func(op hosts.Operation, args any) *hosts.Request { return op.Request(args, nil) }
	all := map[string]*hosts.Request{}
	for _, r := range []*hosts.Request{
		request(hosts.OpFacts, hosts.None{}), request(hosts.OpHostFacts, hosts.None{}),
		request(hosts.OpList, hosts.ListQuery{Dataset: "pool/a", Recursive: true, Versions: true}),
		request(hosts.OpDatasetOf, "/a"),
		request(hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a"}}),
		request(hosts.OpEstimate, []zfs.SendSpec{{Dataset: "pool/a", To: "x"}}),
		request(hosts.OpHolds, []string{"pool/a@x"}),
		request(hosts.OpPermitted, "pool/a"),
		request(hosts.OpSnapshot, []string{"pool/a@x"}),
		request(hosts.OpHold, hosts.Tagged{Tag: "t", Snapshots: []string{"pool/a@x"}}),
		request(hosts.OpRelease, hosts.Tagged{Tag: "t", Snapshots: []string{"pool/a@x"}}),
		request(hosts.OpBookmark, map[string]string{"pool/a#x": "pool/a@x"}),
		request(hosts.OpDestroy, []string{"pool/a@x"}),
		request(hosts.OpCreateParents, "pool/a/b"),
		request(hosts.OpDiscardPartial, "pool/a"),
		request(hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: "pool/a", To: "x"}}),
		request(hosts.OpSetProperties, zfs.PropertyChange{Dataset: "pool/a", Set: map[string]string{"a:b": "c"}}),
		request(hosts.OpMount, "pool/a"), request(hosts.OpUnmount, "pool/a"), request(hosts.OpSync, "pool/a"), request(hosts.OpDamage, "pool/a"),
		request(hosts.OpRollback, zfs.Rollback{Dataset: "pool/a", To: zfs.SnapshotID{Name: "x", GUID: guid}}),
		request(hosts.OpRevert, "pool/a@"+zfs.HealPrefix+"x"),
		request(hosts.OpCreateDrillClone, zfs.DrillClone{Snapshot: "pool/a@x", Job: "home"}),
		request(hosts.OpDestroyDrillClones, zfs.DrillClones{Datasets: []string{"pool/a"}, Job: "home"}),
		request(hosts.OpApply, hosts.ChangeList{Changes: []hosts.Change{hosts.OpSync.Change("pool/a")}, List: &hosts.ListQuery{Dataset: "pool/a", Recursive: true, Versions: true}}),
		request(hosts.OpRenameDiverged, []zfs.DivergedCopy{{Dataset: "pool/a", GUID: guid, As: "pool/a.zxfer-2026-11-23T10-15-00Z"}}),
	} {
		all[r.Op.Name()] = r
	}
	return all
}

// TestLyingHostCostsBoundedMemory expects that no answer of a host without zxfer costs more memory than
// documented, whatever its zfs prints. One listing once took 2 GB.
func TestLyingHostCostsBoundedMemory(t *testing.T) {
	requests := plainRequests()
	for _, op := range hosts.Operations() {
		if op.Plain() {
			require.Contains(t, requests, op.Name(), "add a request of the operation")
		}
	}
	for name, rows := range map[string]string{ // most are just below the limit, and are parsed
		"datasets":         `seq 1 400000 | sed 's|.*|pool/a/&\ttype\tfilesystem\t-|'`,
		"endless datasets": `seq 1 9999999 | sed 's|.*|pool/a/&\ttype\tfilesystem\t-|'`,
		"a listing":        `case $1 in get) seq 1 200000 | sed 's|.*|pool/a/&\ttype\tfilesystem\t-\npool/a/&\tguid\t&\t-|';; list) seq 1 200000 | sed 's|.*|pool/a@&\t&\t1|';; esac`,
		"endless values":   `seq 1 9999999 | sed 's|.*|pool/a\tname\t&\t-|'`,
		"versions":         `seq 1 400000 | sed 's|.*|pool/a@&\t&\t1|'`,
		"holds":            `seq 1 400000 | sed 's|.*|pool/a@&\tx\tMon Jan 1 00:00 2024|'`,
		"damage":           `seq 1 400000 | sed 's|.*|  pool/a:<0x&>|;1i errors: Permanent errors have been detected in the following files:\n'`,
		"permissions":      `printf -- '---- Permissions on pool/a -\nPermission sets:\n'; seq 1 100000 | sed 's|.*|\t@s& @s&,p&|'`,
		"property names":   `seq 1 400000 | sed 's|.*|a:&|'`,
		"one endless row":  `cat /dev/zero`,
		"empty rows":       `yes ''`,
	} {
		t.Run(name, func(t *testing.T) {
			dir, h := openAccount(t, accountNamed("sh"), "PATH=/usr/bin:/bin\n"+rows)
			require.NoError(t, os.Link(filepath.Join(dir, "zfs"), filepath.Join(dir, "zpool")))
			for _, r := range requests {
				if testing.Short() && !slices.Contains([]string{"list", "properties", "holds", "estimate", "damage"}, r.Op.Name()) {
					continue
				}
				peak := peakHeap(func() { _ = h.Run(t.Context(), r) })
				require.Less(t, peak, uint64(maxLieMemory), r.Op.Name())
			}
		})
	}
}

// peakHeap returns how much the live heap grew at most while f ran, in bytes. The amount of garbage
// depends on the load of the machine. The collector runs early, so that it sees each peak.
func peakHeap(f func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(5))
	read := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	runtime.GC()
	before, peak := read(), uint64(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-tick.C:
				peak = max(peak, read())
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return max(peak, before) - before
}

// TestLargeListingIsAccepted expects that the limits permit a listing of 200,000 versions.
func TestLargeListingIsAccepted(t *testing.T) {
	_, h := openAccount(t, accountNamed("sh"), `PATH=/usr/bin:/bin
case "$*" in
list*) seq 1 200000 | sed 's|.*|pool/data/home@zxfer_home_2026-11-28_17:12:33-&\t1234567890123&\t&|';;
get*type,guid*) printf 'pool/data/home\ttype\tfilesystem\t-\npool/data/home\tguid\t7\t-\n';;
esac`)
	l, err := hosts.Call(t.Context(), h, hosts.OpList, hosts.ListQuery{Dataset: "pool/data/home", Versions: true, NoAncestors: true, Identity: true})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 1)
	require.Len(t, l.Datasets[0].Versions, 200_000)
}
