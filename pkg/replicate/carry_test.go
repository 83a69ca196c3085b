package replicate

import (
	"strings"
	"testing"

	toml "github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"
)

// carry is true, false, or the names of properties that are carried too.
func TestCarryInAJobFile(t *testing.T) {
	t.Parallel()
	parse := func(carry string) (*File, error) {
		return Parse("jobs.toml", []byte(`
[[job]]
name = "home"
source = "tank/home"
snapshots = { take = "{job}-%Y%m%dT%H%M%SZ" }
[[job.target]]
name = "near"
to = "backup:vault"
properties = { `+carry+` }
`))
	}
	for carry, want := range map[string]struct {
		all   bool
		named []string
	}{
		`exclude = ["atime"]`:          {},
		`carry = false`:                {},
		`carry = []`:                   {},
		`carry = true`:                 {true, nil},
		`carry = ["org.example:note"]`: {true, []string{"org.example:note"}},
		`carry = ["com.sun:auto-snapshot", "dedup"]`: {true, []string{"com.sun:auto-snapshot", "dedup"}},
	} {
		f, err := parse(carry)
		require.NoError(t, err, carry)
		all, named := f.Jobs[0].Targets[0].Properties.Carries()
		require.Equal(t, want.all, all, carry)
		require.Equal(t, want.named, named, carry)
		text, err := toml.Marshal(f.Jobs[0].Targets[0].Properties) // as an import writes it
		require.NoError(t, err)
		if strings.HasPrefix(carry, "carry") {
			require.Contains(t, string(text), strings.ReplaceAll(carry, `"`, "'"))
		}
	}
	for carry, text := range map[string]string{
		`carry = "yes"`:                          `properties.carry = yes: write true, or an array of names`,
		`carry = 1`:                              `properties.carry = 1: write true, or an array of names`,
		`carry = [true]`:                         `properties.carry: true is not the name of a property`,
		`carry = ["setuid"]`:                     `properties.carry: setuid cannot be carried: it can grant rights to programs or devices`,
		`carry = ["mountpoint"]`:                 `properties.carry: mountpoint cannot be carried: it belongs to the dataset's place`,
		`carry = ["zxfer:job"]`:                  `properties.carry: zxfer:job cannot be carried`,
		`carry = ["org.openzfs.systemd:nofail"]`: `properties.carry: org.openzfs.systemd:nofail cannot be carried`,
		`carry = ["org.example:Note"]`:           `'N'`,
		`set = { "org.example:note" = "a\nb" }`:  `properties.set: org.example:note="a\nb": the value must be one printable line`,
	} {
		_, err := parse(carry)
		require.ErrorContains(t, err, text, carry)
	}
	require.Equal(t, `to carry one: properties.carry = ["NAME"]`, Keys("to carry one: {{carry NAME}}"))
}
