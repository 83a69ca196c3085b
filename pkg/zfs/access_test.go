package zfs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func filesystem(name string, properties map[string]Property) *Dataset {
	return &Dataset{Name: name, Type: Filesystem, Properties: properties}
}

// TestAccess expects inherited values, but no defaults, no rights, and no options of a mount.
func TestAccess(t *testing.T) {
	t.Parallel()
	d := filesystem("a/s", map[string]Property{
		"acltype": {"posix", "inherited from a"}, "aclmode": {"discard", "default"}, "aclinherit": {"x\ny", "local"}, "exec": {"off", "local"}, "setuid": {"on", "local"},
		"devices": {"off", "temporary"}, "nbmand": {"on", "received"}, "quota": {"5", "local"}})
	require.Equal(t, map[string]string{"acltype": "posix", "exec": "off", "nbmand": "on"}, d.Access())
	d.Type = Volume
	require.Empty(t, d.Access())
}

// TestAccessGaps expects that a copy gets only values that it will not inherit from another copy.
func TestAccessGaps(t *testing.T) {
	t.Parallel()
	source := filesystem("a/s", map[string]Property{"acltype": {"posix", "inherited from a"}, "exec": {"off", "local"}})
	none := func(string) bool { return false }
	copies := map[string]*Dataset{"b": filesystem("b", map[string]Property{"acltype": {"off", "default"}, "exec": {"off", "local"}})}
	g := NewAccessGaps(copies)
	require.Equal(t, map[string]string{"acltype": "posix"}, g.Of(source, "b/new", none))
	require.Empty(t, g.Of(source, "b/new/child", none))
	require.Equal(t, map[string]string{"acltype": "posix", "exec": "off"}, g.Of(source, "c/unlisted", none))
	require.Empty(t, NewAccessGaps(copies).Of(source, "b/new", func(name string) bool { return name == "acltype" }))

	copies["b/old"] = filesystem("b/old", map[string]Property{"acltype": {"off", "default"}, "exec": {"on", "local"}})
	copies["b/old/child"] = filesystem("b/old/child", map[string]Property{"acltype": {"off", "default"}, "exec": {"on", "inherited from b/old"}})
	copies["b/old/own"] = filesystem("b/old/own", map[string]Property{"acltype": {"off", "local"}, "exec": {"off", "local"}})
	copies["b/rights"] = filesystem("b/rights", map[string]Property{"acltype": {"posix", "local"}, "exec": {"on", "local"}})
	require.Empty(t, NewAccessGaps(copies).Of(filesystem("a/s", map[string]Property{"exec": {"off", "inherited from a"}}), "b/rights", none))
	g = NewAccessGaps(copies)
	require.Equal(t, map[string]string{"acltype": "posix", "exec": "off"}, g.Of(source, "b/old", none))
	require.Empty(t, g.Of(source, "b/old/child", none))
	require.Equal(t, map[string]string{"acltype": "posix"}, g.Of(source, "b/old/own", none))
}

// TestSettings records limits, shares and access of a source, and reads them back.
func TestSettings(t *testing.T) {
	t.Parallel()
	d := filesystem("a/s", map[string]Property{
		"quota": {"5", "local"}, "refquota": {"0", "default"}, "filesystem_limit": {"0", "local"}, "snapshot_limit": {"18446744073709551615", "local"}, "reservation": {"7", "received"},
		"sharenfs": {"rw=<x>", "inherited from a"}, "sharesmb": {strings.Repeat("x", maxSetting+1), "local"}, "acltype": {"posix", "inherited from a"}, "exec": {"on", "local"}, "setuid": {"on", "default"}})
	root := SettingsOf(d, true)
	require.Equal(t, Settings{"quota": "5", "filesystem_limit": "0", "reservation": "7", "sharenfs": "rw=<x>", "acltype": "posix", "exec": "on"}, root)
	require.Equal(t, Settings{"quota": "5", "filesystem_limit": "0", "reservation": "7", "exec": "on"}, SettingsOf(d, false))
	back, err := ParseSettings(root.Encode())
	require.NoError(t, err)
	require.Equal(t, root, back)
	require.Equal(t, map[string]string{"acltype": "posix"}, root.Source(Filesystem).Access())
	require.Empty(t, Settings{}.Encode())
	later, err := ParseSettings(`{"quota":"5","later":"x"}`)
	require.NoError(t, err)
	require.Equal(t, Settings{"quota": "5"}, later)
	for _, hostile := range []string{"", "{", "[]", `{"quota":"5"} {}`, `{"quota":"x"}`, `{"quota":7}`, `{"sharenfs":"a\nb"}`, `{"acltype":"x"}`, `{"quota":"` + strings.Repeat("9", maxOrigin) + `"}`} {
		_, err := ParseSettings(hostile)
		require.Error(t, err, "%.40s", hostile)
	}
}

// FuzzParseSettings expects that an accepted record holds only values that zfs set may get.
func FuzzParseSettings(f *testing.F) {
	f.Add(`{"quota":"5","acltype":"posix","sharenfs":"rw"}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, value string) {
		s, err := ParseSettings(value)
		if err != nil {
			return
		}
		for name, v := range s {
			require.Contains(t, SettingsNames(), name)
			require.NoError(t, CheckValue(name, v))
		}
	})
}

// TestDistrust expects that only an administrator of this host permits setuid programs and devices.
func TestDistrust(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setuid   Property
		inherits bool
		off      bool
	}{
		"default":                     {Property{"on", "default"}, false, true},
		"default, below a restricted": {Property{"on", "default"}, true, false},
		"set":                         {Property{"on", "local"}, false, false},
		"set above":                   {Property{"on", "inherited from tank"}, false, false},
		"received":                    {Property{"on", "received"}, true, true},
		"off":                         {Property{"off", "default"}, false, false},
		"received, off":               {Property{"off", "received"}, false, false},
		"by a mount option":           {Property{"off", "temporary"}, false, true},
		"not known":                   {Property{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := Distrust(map[string]Property{"setuid": c.setuid, "devices": {"off", "local"}}, c.inherits)
			require.Equal(t, c.off, set["setuid"] == "off")
			require.NotContains(t, set, "devices")
		})
	}
}
