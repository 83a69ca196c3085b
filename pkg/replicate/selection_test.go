package replicate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestSelects(t *testing.T) {
	t.Parallel()
	tests := []struct {
		include, exclude []string
		dataset          string
		want             bool
	}{
		{nil, nil, "tank", true},
		{nil, nil, "tank/a/b", true},
		{nil, nil, "tanker", false},
		{nil, []string{"."}, "tank", false},
		{nil, []string{"."}, "tank/a", true},
		{nil, []string{"cache"}, "tank/a/cache", false},
		{nil, []string{"cache"}, "tank/a/cache/deep", false},
		{nil, []string{"cache"}, "tank/a/cached", true},
		{nil, []string{"a/*"}, "tank/a", true},
		{nil, []string{"a/*"}, "tank/a/b", false},
		{nil, []string{"a/*"}, "tank/b/a/c", true},
		{nil, []string{"/a"}, "tank/a/b", false},
		{nil, []string{"/a"}, "tank/b/a", true},
		{nil, []string{"re:cache"}, "tank/a/cached", false}, // found anywhere
		{nil, []string{"re:^a/c"}, "tank/a/cache", false},
		{nil, []string{"re:^cache"}, "tank/a/cache", true},
		{nil, []string{"re:cache$"}, "tank/a/cache/deep", true}, // no match for descendants
		{nil, []string{"re:."}, "tank", true},                   // never the source itself
		{[]string{"re:^vm[0-9]+(/|$)"}, nil, "tank/vm1/disk", true},
		{[]string{"re:^vm[0-9]+$"}, nil, "tank/vm1/disk", false},
		{[]string{"re:^vm"}, nil, "tank", false},
		{[]string{"vm*"}, nil, "tank/vm1/disk", true},
		{[]string{"vm*"}, nil, "tank/home", false},
		{[]string{"vm*"}, []string{"scratch"}, "tank/vm1/scratch", false},
	}
	for _, tt := range tests {
		j := &Selection{Include: tt.include, Exclude: tt.exclude}
		require.Equal(t, tt.want, j.SelectsName("tank", tt.dataset), "%+v", tt)
	}
}

// TestTakes expects that a property may be set or inherited. A name without a value has the meaning
// that other tools use.
func TestTakes(t *testing.T) {
	t.Parallel()
	d := func(value, source string) *zfs.Dataset {
		return &zfs.Dataset{Name: "tank/a", Properties: map[string]zfs.Property{"my:job": {Value: value, Source: source}}}
	}
	inherited := "inherited from tank"
	tests := []struct {
		property string
		d        *zfs.Dataset
		want     bool
	}{
		{"my:job=home", d("home", "local"), true},
		{"my:job=home", d("home", inherited), true},
		{"my:job=home", d("home", "received"), true},
		{"my:job=home", d("homes", "local"), false},
		{"my:job=home", d("-", "-"), false},
		{"my:job=-", d("-", "-"), false},
		{"my:job=a=b", d("a=b", "local"), true},
		{"my:job", d("-", "-"), false},
		{"my:job", d("", "local"), false},
		{"my:job", d("true", "local"), true},
		{"my:job", d("host1,host2", "local"), true},
		{"my:job", d("false", inherited), false},
		{"my:job", d("off", "local"), false},
		{"my:job", d("no", "local"), false},
		{"my:job", d("child", "local"), false},
		{"my:job", d("child", inherited), true},
		{"my:job", d("parent", "local"), true},
		{"my:job", d("parent", inherited), false},
		{"my:other", d("true", "local"), false},
		{"", d("off", "local"), true},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, (&Selection{Property: tt.property}).Selects("tank", tt.d), "%+v", tt)
	}
	require.False(t, (&Selection{Property: "my:job", Exclude: []string{"a"}}).Selects("tank", d("true", "local")))
	j := Job{Selection: Selection{Property: "my:job=x"}, Targets: []Target{{Selection: Selection{Property: "my:job"}}, {Selection: Selection{Property: "my:b"}}, {}}}
	require.Equal(t, []string{"my:job", "my:b"}, j.UserProperties())
}
