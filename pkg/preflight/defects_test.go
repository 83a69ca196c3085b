package preflight

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

func TestDefects(t *testing.T) {
	t.Parallel()
	type change = func(*Input)
	all := func(changes ...change) change {
		return func(in *Input) {
			for _, c := range changes {
				c(in)
			}
		}
	}
	first := func(in *Input) *plan.Step { return &in.Plan.Datasets[0].Steps[0] }
	plain := func(*Input) {}
	raw := func(in *Input) { first(in).Send.Flags = zfs.StreamFlags{Raw: true} }
	through := func(in *Input) { first(in).Send.Through = []string{"x"} }
	rawRange := all(raw, through)
	user := func(in *Input) { in.Source.Root, in.Source.User = false, "" }
	decrypted := func(in *Input) { in.SourceListing.Datasets[0] = filesystem("tank/a", "encryption", "on") }
	grows := func(in *Input) { first(in).Kind = plan.Incremental }
	back := all(raw, grows, func(in *Input) { in.SourceListing.Datasets[0] = filesystem("tank/a", zfs.FlagsProperty, "w") })
	restored := func(g plan.RestoreActions) change {
		return func(in *Input) { in.Plan.Datasets[0].Restore = &g }
	}
	resumed := func(in *Input) { first(in).Kind = plan.Resume }
	ashift := func(n string) change {
		return func(in *Input) { in.TargetListing.Pool = pool("vault", "ashift", n) }
	}
	active := func(p func(*Input) *zfs.Pool, names ...string) change {
		return func(in *Input) {
			p(in).Features = map[string]string{"large_dnode": "enabled", "block_cloning": "enabled"}
			for _, name := range names {
				p(in).Features[name] = "active"
			}
		}
	}
	source := func(in *Input) *zfs.Pool { return &in.SourceListing.Pool }
	target := func(in *Input) *zfs.Pool { return &in.TargetListing.Pool }
	size := func(n string) change { return func(in *Input) { in.SourceListing.Pool.Properties["size"] = n } }
	fromBookmark := func(in *Input) { first(in).Send.From = "#b" }
	targets := func(properties ...string) change {
		return func(in *Input) { in.TargetListing.Datasets = []*zfs.Dataset{filesystem("vault/a", properties...)} }
	}
	zpl := func(version, dnodesize string) change {
		return func(in *Input) {
			d := filesystem("tank/a", "version", version, "dnodesize", dnodesize)
			d.Type = zfs.Filesystem
			in.SourceListing.Datasets[0] = d
		}
	}
	tests := []struct {
		name           string
		change         change
		source, target string
		want           []string // "severity host issue"
	}{
		{"plain to an old version", plain, "2.3.9", "0.8.6", nil},
		{"newest", all(rawRange, active(source, "block_cloning", "fast_dedup", "device_removal", "draid", "redaction_bookmarks"), active(target, "draid", "block_cloning"), fromBookmark), "2.4.4", "2.3.9", nil},
		{"raw to an old version", raw, "2.3.9", "2.1.12", []string{"warn beta 15039"}},
		{"raw to 2.1.13", raw, "2.3.9", "2.1.13", nil},
		{"raw to 2.2.0", raw, "2.3.9", "2.2.0", nil},
		{"raw to a larger ashift", all(raw, ashift("13")), "2.3.9", "2.1.2-1", []string{"warn beta zfs-2.1.3", "warn beta 15039"}},
		{"raw, ashift unknown", all(raw, ashift("0")), "2.3.9", "2.1.2", []string{"warn beta zfs-2.1.3", "warn beta 15039"}},
		{"raw range as root", rawRange, "2.4.0", "2.4.0", nil},
		{"raw range as a user", all(rawRange, user), "2.4.0-1", "2.4.0", []string{"warn alpha 18193"}},
		{"raw range as a user, fixed", all(rawRange, user), "2.4.1", "2.4.0", nil},
		{"raw range as a user, before", all(rawRange, user), "2.3.9", "2.4.0", nil},
		{"decrypted 2.2", decrypted, "2.2.7", "2.3.9", []string{"warn alpha 12014"}},
		{"decrypted 2.2 fixed", decrypted, "2.2.8", "2.3.9", nil},
		{"decrypted 2.3", decrypted, "2.3.2", "2.3.2", []string{"warn alpha 12014"}},
		{"decrypted 2.3 fixed", decrypted, "2.3.3", "2.3.2", nil},
		{"sent back", back, "2.1.2", "2.4.4", []string{"warn alpha 10523", "note alpha 15526"}},
		{"restored onto its source", all(back, restored(plan.RestoreActions{})), "2.4.4", "2.1.2", []string{"warn beta 15039", "fail beta 10523"}},
		{"restored onto its source, fixed", all(back, restored(plan.RestoreActions{})), "2.4.4", "2.1.14", nil},
		{"restored to a new dataset", all(back, restored(plan.RestoreActions{Due: true})), "2.4.4", "2.1.2", []string{"warn beta 15039"}},
		{"sent back, fixed", back, "2.1.14", "2.4.4", nil},
		{"resumed raw", all(raw, resumed), "2.3.9", "0.8.6", []string{"warn beta 15039", "warn beta zfs-2.0.0"}},
		{"versions unknown", rawRange, "", "git", nil},

		{"dirty dnodes 2.1", plain, "2.1.13", "2.1.13", []string{"note alpha 15526"}},
		{"dirty dnodes 2.1 fixed", plain, "2.1.14", "2.1.13", nil},
		{"dirty dnodes 2.2", plain, "2.2.1", "2.2.1", []string{"note alpha 15526"}},
		{"dirty dnodes 2.2 fixed", plain, "2.2.2", "2.2.1", nil},
		{"dirty dnodes, Debian 12", plain, "2.1.11-1+deb12u1", "2.3.9", nil},
		{"cloned 2.2", active(source, "block_cloning"), "2.2.11", "2.3.9", []string{"warn alpha 18412"}},
		{"cloned 2.3.8", active(source, "block_cloning"), "2.3.8", "2.3.9", []string{"warn alpha 18412"}},
		{"cloned 2.4.3", active(source, "block_cloning"), "2.4.3", "2.3.9", []string{"warn alpha 18412"}},
		{"cloned 2.4.4", active(source, "block_cloning"), "2.4.4", "2.3.9", nil},
		{"nothing cloned", active(source), "2.3.8", "2.3.8", nil},
		{"cloned on the target", active(target, "block_cloning"), "2.3.9", "2.3.8", nil},
		{"pruned", active(target, "block_cloning", "fast_dedup"), "2.4.4", "2.3.7", []string{"warn beta 18520"}},
		{"pruned 2.4", active(target, "block_cloning", "fast_dedup"), "2.4.4", "2.4.2", []string{"warn beta 18520"}},
		{"pruned, fixed", active(target, "block_cloning", "fast_dedup"), "2.4.4", "2.3.8", nil},
		{"deduplicated, not cloned", active(target, "fast_dedup"), "2.4.4", "2.3.7", nil},
		{"device removed 2.2", active(target, "block_cloning", "device_removal"), "2.4.4", "2.2.7", []string{"warn beta 17180"}},
		{"device removed 2.3", active(target, "block_cloning", "device_removal"), "2.4.4", "2.3.1", []string{"warn beta 17180"}},
		{"device removed, fixed", active(target, "block_cloning", "device_removal"), "2.4.4", "2.3.2", nil},
		{"large devices", all(active(source, "block_cloning"), size("109951162777600")), "2.3.4", "2.4.4", []string{"warn alpha 18412", "warn alpha 17886"}},
		{"no large devices", all(active(source, "block_cloning"), size("10995116277760")), "2.3.4", "2.4.4", []string{"warn alpha 18412"}},
		{"dRAID 2.2", active(target, "draid"), "2.4.4", "2.2.9", []string{"warn beta b8cc4c504c"}},
		{"dRAID 2.3", active(source, "draid"), "2.3.6", "2.4.4", []string{"warn alpha b8cc4c504c"}},
		{"dRAID 2.4", active(source, "draid"), "2.4.1", "2.4.4", []string{"warn alpha b8cc4c504c"}},
		{"dRAID fixed", active(target, "draid"), "2.4.4", "2.2.10", nil},
		{"redacted", all(fromBookmark, active(source, "redaction_bookmarks")), "2.3.7", "2.4.4", []string{"warn alpha 18477"}},
		{"redacted, fixed", all(fromBookmark, active(source, "redaction_bookmarks")), "2.3.8", "2.4.4", nil},
		{"from a bookmark, none redacted", all(fromBookmark, active(source)), "2.3.7", "2.4.4", nil},
		{"redacted, from a snapshot", active(source, "redaction_bookmarks"), "2.3.7", "2.4.4", nil},
		{"into a mounted copy", all(grows, targets("mounted", "yes")), "2.3.9", "2.4.1", []string{"note beta 18415"}},
		{"into a mounted copy, fixed", all(grows, targets("mounted", "yes")), "2.3.9", "2.4.2", nil},
		{"into an unmounted copy", all(grows, targets("mounted", "no")), "2.3.9", "2.4.1", nil},
		{"old ZPL, large dnodes", all(grows, zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", []string{"fail beta 18773"}},
		{"old ZPL, large dnodes, interrupted", all(resumed, func(in *Input) { first(in).BaseGUID = 7 }, zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.1.2", []string{"fail beta 18773"}},
		{"old ZPL, large dnodes, full send", all(zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", nil},
		{"old ZPL, large dnodes, raw", all(grows, raw, zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", nil},
		{"old ZPL, small dnodes now", all(grows, zpl("4", "legacy"), active(source, "large_dnode")), "2.4.4", "2.4.4", []string{"warn beta 18773"}},
		{"old ZPL, small dnodes in the pool", all(grows, zpl("4", "legacy"), active(source)), "2.4.4", "2.4.4", nil},
		{"new ZPL, large dnodes", all(grows, zpl("5", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", nil},
		{"plain into an encrypted copy", targets("encryption", "aes-256-gcm"), "2.4.4", "2.2.6", []string{"note beta 16623"}},
		{"plain into a plain copy", targets("encryption", "off"), "2.4.4", "2.2.6", nil},
		{"plain, to be encrypted", func(in *Input) { first(in).Receive.Set = map[string]string{"encryption": "on"} }, "2.4.4", "2.4.4", []string{"note beta 16623"}},
		{"plain below an encrypted parent", func(in *Input) {
			in.TargetListing.Ancestors[0] = filesystem("vault", "encryption", "on", "available", "10737418240")
		}, "2.4.4", "2.4.4", []string{"note beta 16623"}},
		{"raw below an encrypted parent", all(raw, func(in *Input) { in.TargetListing.Ancestors[0] = filesystem("vault", "encryption", "on") }), "2.4.4", "2.4.4", nil},
	}
	met := map[string]bool{}
	for _, tt := range tests {
		in := validInput()
		tt.change(&in)
		in.Source.ZFS, in.Target.ZFS = tt.source, tt.target
		var got []string
		for _, f := range defects(&in) {
			require.NotEmpty(t, f.Remedy)
			link := f.Evidence[strings.LastIndex(f.Evidence, "/")+1:]
			met[f.Summary[strings.Index(f.Summary, ": "):]] = true
			got = append(got, fmt.Sprintf("%s %s %s", f.Severity, f.Host, link))
		}
		require.Equal(t, tt.want, got, tt.name)
	}
	require.Len(t, met, len(knownDefects()), "each row is tested")
}

// TestLacks expects that a branch without its own fix has it only if it is newer than all fixed
// ones.
func TestLacks(t *testing.T) {
	t.Parallel()
	fixes := []version{{2, 1, 14}, {2, 3, 2}}
	for v, want := range map[version]bool{
		{2, 0, 7}: true, {2, 1, 13}: true, {2, 1, 14}: false, {2, 2, 10}: true, {2, 3, 1}: true, {2, 3, 2}: false, {2, 4, 0}: false,
	} {
		require.Equal(t, want, v.lacks(fixes), v)
	}
	require.True(t, version{9, 9, 9}.lacks(nil), "in no release yet")
	require.Equal(t, "upgrade ZFS; fixed in 2.1.14 and 2.3.2; or wait", (&defect{fixed: fixes, remedy: "wait"}).remedyText())
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]version{
		"2.3.9-1": {2, 3, 9}, "2.3.9": {2, 3, 9}, "zfs-2.1.11-1+deb12u1": {2, 1, 11}, "2.4": {2, 4, 0}, "2.2.0-rc4": {2, 2, 0}, "0.8.6-1ubuntu4": {0, 8, 6},
	} {
		v, ok := parseVersion(s)
		require.True(t, ok, s)
		require.Equal(t, want, v, s)
	}
	for _, s := range []string{"", "2", "git", "2.x", "-2.3", "2.-3.1", "a.b.c"} {
		_, ok := parseVersion(s)
		require.False(t, ok, s)
	}
}

func FuzzParseVersion(f *testing.F) {
	for _, s := range []string{"2.3.9-1", "zfs-2.1.11", "2.4", "", "9999999999999999999999.1", "2..3", "2.3.9.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, ok := parseVersion(s)
		if !ok {
			require.Zero(t, v)
			return
		}
		require.False(t, v.before(v))
		again, ok := parseVersion(fmt.Sprintf("%d.%d.%d-1", v[0], v[1], v[2]))
		require.True(t, ok)
		require.Equal(t, v, again)
	})
}
