package zfs

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestParseRole accepts only values that zxfer writes.
func TestParseRole(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a1", 8)
	for _, r := range []Role{
		{Kind: RoleSource, ID: id, Job: "home", Target: "near", Since: time.Unix(1795687500, 0)},
		{Kind: RoleStandby, ID: id, Before: strings.Repeat("0", 16), Job: "a-B_1", Target: "t", Since: time.Unix(0, 0)},
	} {
		got, err := ParseRole(r.String())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	valid := "source " + id + " - home near 1795687500"
	_, err := ParseRole(valid)
	require.NoError(t, err)
	for _, value := range []string{
		"", "source", valid + " ", " " + valid, valid + "\n", strings.ToUpper(valid), strings.Replace(valid, "source", "owner", 1),
		strings.Replace(valid, id, id[1:], 1), strings.Replace(valid, "- ", "-- ", 1), strings.Replace(valid, "home", "ho/me", 1), strings.Replace(valid, "home", "", 1),
		strings.Replace(valid, "1795687500", "-1", 1), strings.Replace(valid, "1795687500", "01795687500", 1), strings.Replace(valid, "1795687500", "99999999999999999999", 1),
		strings.Replace(valid, "home", strings.Repeat("h", 100), 1), strings.Replace(valid, "home", "--rollback", 1), strings.Replace(valid, "near", "-n", 1),
	} {
		_, err := ParseRole(value)
		require.ErrorContains(t, err, "zxfer did not write", value)
	}
}

// TestRoleOf expects that only local values count, and that they apply to descendants.
func TestRoleOf(t *testing.T) {
	t.Parallel()
	value := Role{Kind: RoleSource, ID: strings.Repeat("1", 16), Job: "j", Target: "t", Since: time.Unix(1, 0)}.String()
	all := map[string]map[string]Property{
		"v":       {},
		"v/a":     {RoleProperty: {value, "local"}},
		"v/a/b":   {RoleProperty: {value, "inherited from v/a"}},
		"v/r":     {RoleProperty: {value, "received"}},
		"v/r/x":   {RoleProperty: {value, "inherited from v/r"}},
		"v/far/x": {RoleProperty: {value, "inherited from v/far"}}, // v/far was not listed
	}
	for name, want := range map[string]string{"v": "", "v/a": "v/a", "v/a/b": "v/a", "v/a/new": "v/a", "v/r": "", "v/r/x": "", "v/far/x": "v/far", "w": ""} {
		at, r, err := RoleOf(name, func(n string) map[string]Property { return all[n] })
		require.NoError(t, err)
		require.Equal(t, want, at, name)
		require.Equal(t, want == "", r.Receives(), name)
	}
}

// TestOriginOf records what the copy needs, and reads it back.
func TestOriginOf(t *testing.T) {
	t.Parallel()
	d := &Dataset{Type: Filesystem, Properties: map[string]Property{
		"mountpoint": {"/data", "inherited from tank"}, "canmount": {"on", "local"}, "readonly": {"off", "default"}, "quota": {"5", "local"}}}
	require.Equal(t, Origin{Set: map[string]string{"mountpoint": "/data", "readonly": "off"}, Settings: Settings{"quota": "5"}}, OriginOf(d, true))
	require.Empty(t, OriginOf(d, false).Set)
	d.Properties["canmount"] = Property{"noauto", "local"}
	d.Properties["mountpoint"] = Property{"/x\ny", "local"} // such a path cannot be recorded
	require.Equal(t, map[string]string{"canmount": "noauto"}, OriginOf(d, false).Set)
	o := OriginOf(d, true)
	o.Job, o.Source, o.Host = "home", "root@a:tank/<x>", "a"
	back, err := ParseOrigin(o.Encode())
	require.NoError(t, err)
	o.Settings = nil // recorded in another property
	require.Equal(t, o, back)
	o.Source = strings.Repeat("x", maxOrigin)
	require.Empty(t, o.Encode())
	require.Equal(t, map[string]string{"readonly": "on"}, OriginOf(&Dataset{Type: Volume, Properties: map[string]Property{"readonly": {"on", "local"}}}, true).Set)
}

// FuzzParseOrigin expects that an accepted record holds only values that zfs set may get.
func FuzzParseOrigin(f *testing.F) {
	f.Add(`{"job":"j","target":"t","source":"a:b","host":"a","set":{"mountpoint":"/x","canmount":"on","readonly":"off"}}`)
	f.Add(`{"set":{"mountpoint":"/x"}} {}`)
	f.Fuzz(func(t *testing.T, value string) {
		o, err := ParseOrigin(value)
		if err != nil {
			return
		}
		for name, v := range o.Set {
			require.Contains(t, OriginProperties(), name)
			require.NoError(t, CheckValue(name, v))
		}
		require.True(t, o.Job == "" || isRoleName(o.Job))
	})
}
