package zfstest

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// Arrival is what a stream of this host's pools may bring, as a plan would say.
// A snapshot that is missing has the GUID 1.
func Arrival(t testing.TB, s zfs.SendSpec) zfs.Arrival {
	t.Helper()
	guid := func(version string) uint64 {
		out, err := exec.Command("zfs", "get", "-Hp", "-o", "value", "guid", version).Output()
		if err != nil {
			return 1
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
		require.NoError(t, err)
		return n
	}
	out, _ := exec.Command("zfs", "get", "-Hp", "-o", "value", "encryption", s.Dataset).Output()
	kind, _ := exec.Command("zfs", "get", "-H", "-o", "value", "type", s.Dataset).Output()
	a := zfs.Arrival{Raw: s.Flags.Raw && !strings.HasPrefix(string(out), "off"), Volume: strings.HasPrefix(string(kind), "volume")}
	if s.Token != "" {
		token, err := zfs.ParseToken(s.Token)
		require.NoError(t, err)
		_, name, _ := strings.Cut(token.ToName, "@")
		a.Snapshots = []zfs.SnapshotID{{Name: name, GUID: token.ToGUID}}
		a.Base, a.Resumed, a.Raw = token.FromGUID, true, token.Flags.Raw
		return a
	}
	for _, name := range append(append([]string(nil), s.Through...), s.To) {
		a.Snapshots = append(a.Snapshots, zfs.SnapshotID{Name: name, GUID: guid(s.Dataset + "@" + name)})
	}
	switch {
	case s.From == "":
	case strings.ContainsAny(s.From[:1], "@#"):
		a.Base = guid(s.Dataset + s.From)
	default:
		a.Base = guid(s.From)
	}
	return a
}

// Receive is a receive of a stream of this host's pools.
func Receive(t testing.TB, s zfs.SendSpec, target string) *zfs.ReceiveSpec {
	t.Helper()
	return &zfs.ReceiveSpec{Target: target, Arrival: Arrival(t, s)}
}
