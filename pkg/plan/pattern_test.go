package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPattern(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"daily-*", "daily-1", true},
		{"daily", "daily-1", false}, // a shell pattern matches the whole name
		{"re:daily", "x-daily-1", true},
		{"re:^daily", "x-daily-1", false},
		{"re:^daily-[0-9]+$", "daily-12", true},
		{"re:^daily-[0-9]+$", "daily-12x", false},
		{"re:(?i)DAILY", "daily", true},
		{"[r]e:x", "re:x", true},
		{"re:.*", "", true},
	}
	for _, tt := range tests {
		p, err := ParsePattern(tt.pattern)
		require.NoError(t, err, tt.pattern)
		require.Equal(t, tt.want, p.Match(tt.name), "%+v", tt)
		require.Equal(t, tt.want, Matches([]string{"nothing", tt.pattern}, tt.name), "%+v", tt)
	}
	for _, bad := range []string{"", "re:", "re:(", `re:(?!x)`, "[a", `re:a\1`} {
		_, err := ParsePattern(bad)
		require.Error(t, err, bad)
		require.False(t, Matches([]string{bad}, "a"), "what is malformed stands for nothing")
	}
}

// FirstFail refuses a dataset that is new on the target, also a clone whose
// origin exists.
func TestFirstRefused(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.First, r.Recursive = FirstFail, true })
	requireConflict(t, mustMake(t, req, stateOf(dataset(t, "tank/a", "@a,1"))), FirstRefused, "vault/a", "{{first all}}", "{{first newest}}")
	state := stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "tank/a/c", "@x,5", "origin=tank/a@a"), dataset(t, "vault/a", "@a,1", "written=0"))
	requireConflict(t, mustMake(t, req, state), FirstRefused, "vault/a/c")
	req.First = FirstNewest
	require.Equal(t, "tank/a: @a>@b\ntank/a/c: clone tank/a@a>@x after tank/a", planText(mustMake(t, req, state)))
}
