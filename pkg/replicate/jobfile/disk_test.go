package jobfile

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/decide"
)

// diskJob returns a job file with a target on two disks, after some replacements.
func diskJob(replacements ...string) []byte {
	return []byte(strings.NewReplacer(replacements...).Replace(`[[job]]
name = "j"
source = "tank/home"
snapshots = { take = "s_%Y-%m-%d_%H:%M:%S" }
[[job.target]]
name = "offsite"
to = "offsite/home"
retention = { last = 3 }
[job.target.disk]
pools = { red = "18446744073709551615", blue = "1" }
import = true
export = true
scrub = "30d"
`))
}

// TestParseDisks expects one target per disk, in the order of labels.
func TestParseDisks(t *testing.T) {
	t.Parallel()
	inv, err := Read("x.toml", diskJob())
	require.NoError(t, err)
	for range 2 { // For does not change the inventory
		f, err := inv.For("")
		require.NoError(t, err)
		targets := f.Jobs[0].Targets
		require.Len(t, targets, 2)
		require.Equal(t, []string{"offsite-blue", "offsite-red"}, []string{targets[0].Name, targets[1].Name})
		require.Equal(t, "offsite", targets[1].Disk.Of)
		require.Equal(t, uint64(1), targets[0].Disk.GUID())
		require.Equal(t, decide.Disk{Pool: "offsite", GUID: 1<<64 - 1, Siblings: []uint64{1, 1<<64 - 1}}, targets[1].Identity())
		require.Equal(t, 3, targets[0].Retention.Last)
		require.Equal(t, 90*24*time.Hour, targets[0].Disk.HoldOrDefault())
		require.Equal(t, []string{"/dev/disk/by-id"}, targets[0].Disk.DirectoriesOrDefault())
		require.Equal(t, &targets[0], f.Jobs[0].DiskTarget("offsite-blue"))
		require.Nil(t, f.Jobs[0].DiskTarget("offsite"))
	}
	f, err := Parse("x.toml", diskJob("scrub", "hold = \"keep\"\nscrub"))
	require.NoError(t, err)
	require.Zero(t, f.Jobs[0].Targets[0].Disk.HoldOrDefault())
}

func TestParseRefusesDisks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, from, to, want string }{
		{"remote", `to = "`, `to = "backup:`, "a disk must be on the host that runs the job"},
		{"no pools", `{ red = "18446744073709551615", blue = "1" }`, `{}`, "write labels and GUIDs of 1 to 100 pools"},
		{"GUID 0", `"1"`, `"0"`, `blue = "0" is not a GUID in decimal`},
		{"hexadecimal", `"1"`, `"0x1"`, `blue = "0x1" is not a GUID`},
		{"too large", `"18446744073709551615"`, `"18446744073709551616"`, `is not a GUID`},
		{"negative", `"1"`, `"-1"`, `is not a GUID`},
		{"the same", `"1"`, `"18446744073709551615"`, `"blue" and "red" have the same GUID`},
		{"the same with zeros", `"1"`, `"018446744073709551615"`, `"blue" and "red" have the same GUID`},
		{"label", `blue =`, `"../x" =`, `label "../x": write letters`},
		{"long label", `blue =`, strings.Repeat("b", 41) + ` =`, `with the target's name at most 48`},
		{"export alone", "import = true\n", "", "disk.export has no effect without disk.import"},
		{"user", "source =", "user = \"backup\"\nsource =", "require root"},
		{"hold without bookmarks", "source =", "bookmarks = \"none\"\nsource =", "would be a full one"},
		{"short scrub", `"30d"`, `"1h"`, "at least one day"},
		{"directory", "scrub =", "directories = [\"by-id\"]\nscrub =", "is not an absolute path"},
		{"option as directory", "scrub =", "directories = [\"-f\"]\nscrub =", "is not an absolute path"},
		{"same name", "[[job.target]]", "[[job.target]]\nname = \"offsite-red\"\nto = \"vault/home\"\n[[job.target]]", `which target "offsite-red" has`},
		{"number as GUID", `"1"`, `1`, "pools"},
	} {
		text := diskJob(c.from, c.to)
		if c.name == "hold without bookmarks" {
			text = append(text, "hold = \"30d\"\n"...)
		}
		require.NotEqual(t, diskJob(), text, c.name)
		_, err := Parse("x.toml", text)
		require.ErrorContains(t, err, c.want, c.name)
	}
	twice := string(diskJob()) + strings.ReplaceAll(string(diskJob()[strings.Index(string(diskJob()), "[[job.target]]"):]), `name = "offsite"`, `name = "other"`)
	_, err := Parse("x.toml", []byte(twice))
	require.ErrorContains(t, err, `targets "offsite" and "other" are the same dataset on the same disk`)
	to := regexp.MustCompile(`to = .*`).FindString(string(diskJob()))
	_, err = Parse("x.toml", append(diskJob(), "\n[[job.target]]\nname = \"plain\"\n"+to+"\n"...))
	require.ErrorContains(t, err, `targets "plain" and "offsite" are the same dataset, `)
	require.ErrorContains(t, err, `but "plain" has no disk`)
}
