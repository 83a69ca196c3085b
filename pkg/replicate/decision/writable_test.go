package decision

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// TestWritableCopies expects one command for all copies that other tools left writable.
func TestWritableCopies(t *testing.T) {
	t.Parallel()
	of := func(name string, kind zfs.Type, properties ...string) *zfs.Dataset {
		d := &zfs.Dataset{Name: name, Type: kind, Properties: map[string]zfs.Property{}}
		for i := 0; i < len(properties); i += 2 {
			d.Properties[properties[i]] = zfs.Property{Value: properties[i+1], Source: "local"}
		}
		return d
	}
	v := &Survey{Root: "tank", Source: &zfs.Listing{}}
	for _, name := range []string{"tank", "tank/a", "tank/b c", "tank/vol", "tank/good", "tank/new"} {
		v.Source.Datasets = append(v.Source.Datasets, of(name, zfs.Filesystem))
	}
	there := &zfs.Listing{Datasets: []*zfs.Dataset{
		of("v/t", zfs.Filesystem, "readonly", "off", "canmount", "on", "mountpoint", "/v/t"),
		of("v/t/a", zfs.Filesystem, "readonly", "off", "canmount", "noauto", "mountpoint", "/v/t/a"),
		of("v/t/b c", zfs.Filesystem, "readonly", "off", "canmount", "on", "mountpoint", "/v/b c"),
		of("v/t/vol", zfs.Volume, "readonly", "off"),
		of("v/t/good", zfs.Filesystem, "readonly", "on", "canmount", "on", "mountpoint", "/v/t/good"),
		of("v/t/foreign", zfs.Filesystem, "readonly", "off", "canmount", "on", "mountpoint", "/v/t/foreign"),
	}}
	target := &replicate.Target{Name: "b", To: "root@b:v/t"}
	w := Writable(v, target, there)
	require.NotNil(t, w)
	require.Equal(t, []string{"v/t", "v/t/b c"}, w.Mountable)
	require.Equal(t, []string{"v/t/a", "v/t/vol"}, w.Others)
	require.Equal(t, "zfs set readonly=on canmount=noauto v/t 'v/t/b c' && zfs set readonly=on v/t/a v/t/vol", w.Command(remedy.Host{}))
	require.Equal(t, `ssh root@b 'zfs set readonly=on canmount=noauto v/t '\''v/t/b c'\'' && zfs set readonly=on v/t/a v/t/vol'`, w.Command(remedy.Host{Name: "root@b"}))

	require.Nil(t, Writable(v, &replicate.Target{To: "root@b:v/t", Properties: replicate.Properties{Set: map[string]string{"readonly": "off"}}}, there), "the job keeps it writable")
	require.Nil(t, Writable(v, target, &zfs.Listing{Datasets: there.Datasets[4:]}))
	there.Datasets[0].Properties[zfs.RoleProperty] = zfs.Property{Value: "garbage", Source: "local"}
	require.Nil(t, Writable(v, target, &zfs.Listing{Datasets: there.Datasets[:1]}), "it may be a source")
}

func TestWithoutRetention(t *testing.T) {
	t.Parallel()
	j := &replicate.Job{Snapshots: replicate.Snapshots{Take: "x"}, Targets: []replicate.Target{{Name: "a"}, {Name: "b", Retention: &retention.Grid{Last: 1}}, {Name: "c", Mirror: &replicate.Mirror{}}}}
	require.Equal(t, []string{replicate.SourceSide, "a"}, j.WithoutRetention())
	j.Retention, j.Targets = &retention.Grid{Last: 1}, j.Targets[1:]
	require.Empty(t, j.WithoutRetention())
}
