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
	blocks := func(sourcePool, targetPool, recordsize string) change {
		return all(grows, targets("recordsize", recordsize), func(in *Input) {
			first(in).Send.Flags.LargeBlocks = true
			in.SourceListing.Pool.Features = map[string]string{"large_blocks": sourcePool}
			in.TargetListing.Pool.Features = map[string]string{"large_blocks": targetPool}
		})
	}
	embedded := all(resumed, func(in *Input) {
		in.Plan.Datasets[0].Type, first(in).Send.Flags.Embedded = zfs.Filesystem, true
	})
	volume := func(encryption string) change {
		return all(raw, active(source, "block_cloning"), func(in *Input) {
			in.Plan.Datasets[0].Type = zfs.Volume
			in.SourceListing.Datasets[0] = filesystem("tank/a", "encryption", encryption)
		})
	}
	// The copy inherits its key from vault, the source from tank.
	inherits := func(root string, salts ...string) change {
		return all(raw, grows, targets("encryption", "aes-256-gcm", "encryptionroot", root), func(in *Input) {
			key := func(name, salt string) *zfs.Dataset {
				return filesystem(name, "encryption", "aes-256-gcm", "keyformat", "passphrase", "pbkdf2iters", "350000", "pbkdf2salt", salt)
			}
			in.SourceListing.Datasets[0] = filesystem("tank/a", "encryption", "aes-256-gcm", "encryptionroot", "tank")
			in.SourceListing.Ancestors = []*zfs.Dataset{key("tank", "1")}
			for _, salt := range salts {
				in.TargetListing.Ancestors = []*zfs.Dataset{key("vault", salt)}
			}
		})
	}
	planned := func(f func(d *plan.Dataset)) change {
		return func(in *Input) { f(in.Plan.Datasets[0]) }
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
		{"old ZPL, large dnodes", all(grows, zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", []string{"fail beta 18773", "note beta 11353"}},
		{"old ZPL, large dnodes, interrupted", all(resumed, func(in *Input) { first(in).BaseGUID = 7 }, zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.1.2", []string{"fail beta 18773", "note beta 11353"}},
		{"old ZPL, large dnodes, full send", all(zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", nil},
		{"old ZPL, large dnodes, raw", all(grows, raw, zpl("4", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", []string{"note beta 11353"}},
		{"old ZPL, small dnodes now", all(grows, zpl("4", "legacy"), active(source, "large_dnode")), "2.4.4", "2.4.4", []string{"warn beta 18773"}},
		{"old ZPL, small dnodes in the pool", all(grows, zpl("4", "legacy"), active(source)), "2.4.4", "2.4.4", nil},
		{"new ZPL, large dnodes", all(grows, zpl("5", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", []string{"note beta 11353"}},
		{"large dnodes, full send", all(zpl("5", "auto"), active(source, "large_dnode")), "2.4.4", "2.4.4", nil},
		{"large dnodes, none yet", all(grows, zpl("5", "auto"), active(source)), "2.4.4", "2.4.4", nil},
		{"small dnodes", all(grows, zpl("5", "legacy"), active(source, "large_dnode")), "2.4.4", "2.4.4", nil},
		{"cloned between keys", all(decrypted, active(source, "block_cloning")), "2.2.0", "2.3.9",
			[]string{"warn alpha 12014", "note alpha 15526", "warn alpha 18412", "warn alpha 15464"}},
		{"cloned between keys, fixed", all(decrypted, active(source, "block_cloning")), "2.2.1", "2.3.9",
			[]string{"warn alpha 12014", "note alpha 15526", "warn alpha 18412"}},
		{"plain into an encrypted copy", targets("encryption", "aes-256-gcm"), "2.4.4", "2.2.6", []string{"note beta 16623"}},
		{"plain into a plain copy", targets("encryption", "off"), "2.4.4", "2.2.6", nil},
		{"plain, to be encrypted", func(in *Input) { first(in).Receive.Set = map[string]string{"encryption": "on"} }, "2.4.4", "2.4.4", []string{"note beta 16623"}},
		{"plain below an encrypted parent", func(in *Input) {
			in.TargetListing.Ancestors[0] = filesystem("vault", "encryption", "on", "available", "10737418240")
		}, "2.4.4", "2.4.4", []string{"note beta 16623"}},
		{"raw below an encrypted parent", all(raw, func(in *Input) { in.TargetListing.Ancestors[0] = filesystem("vault", "encryption", "on") }), "2.4.4", "2.4.4", nil},
		{"inherits another key", inherits("vault", "2"), "2.4.4", "2.4.4", []string{"warn beta 12614"}},
		{"inherits an unknown key", inherits("vault"), "2.4.4", "2.3.9", []string{"warn beta 12614"}},
		{"inherits the source's key", inherits("vault", "1"), "2.4.4", "2.4.4", nil},
		{"is its own encryption root", inherits("vault/a"), "2.4.4", "2.4.4", nil},
		{"inherits another key, plain", all(inherits("vault", "2"), func(in *Input) { first(in).Send.Flags.Raw = false }), "2.4.4", "2.1.16", nil},
		{"inherits another key, full send", all(inherits("vault", "2"), func(in *Input) { first(in).Kind = plan.Full }), "2.4.4", "2.4.4", nil},
		{"inherits another key, a clone", all(inherits("vault", "2"), func(in *Input) {
			in.TargetListing.Datasets[0].Properties["origin"] = zfs.Property{Value: "vault/o@x"}
		}), "2.4.4", "2.4.4", nil},
		{"inherits a key that arrives too", all(inherits("vault", "2"), func(in *Input) {
			in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank", Target: "vault"})
		}), "2.4.4", "2.4.4", nil},
		{"is expected to inherit the source's key", all(inherits("vault", "2"), planned(func(d *plan.Dataset) { d.Joins = "vault" })), "2.4.4", "2.4.4", nil},
		{"becomes an encryption root first", all(inherits("vault", "2"), planned(func(d *plan.Dataset) { d.NewRoots = []string{"vault/a"} })), "2.4.4", "2.4.4", nil},
		{"resumed with -e", embedded, "2.3.0", "2.4.4", []string{"warn alpha 18239"}},
		{"resumed with -e, newest", embedded, "2.4.4", "2.4.4", []string{"warn alpha 18239"}},
		{"resumed with -e, before", embedded, "2.2.11", "2.4.4", nil},
		{"resumed without -e", resumed, "2.3.9", "2.4.4", nil},
		{"resumed with -e, a volume", all(embedded, planned(func(d *plan.Dataset) { d.Type = zfs.Volume })), "2.3.9", "2.4.4", nil},
		{"large blocks in the copy only", blocks("enabled", "active", "1048576"), "2.3.9", "2.4.4", []string{"warn alpha 18101"}},
		{"large blocks in the copy only, 2.4", blocks("enabled", "active", "1048576"), "2.4.0", "2.3.9", []string{"warn alpha 18101"}},
		{"large blocks in the copy only, fixed", blocks("enabled", "active", "1048576"), "2.4.1", "2.3.9", nil},
		{"large blocks in the source", blocks("active", "active", "1048576"), "2.3.9", "2.4.4", nil},
		{"no large blocks in the target", blocks("enabled", "enabled", "1048576"), "2.3.9", "2.4.4", nil},
		{"small blocks in the copy", blocks("enabled", "active", "131072"), "2.3.9", "2.4.4", nil},
		{"large blocks in the copy only, full send", all(blocks("enabled", "active", "1048576"), func(in *Input) { first(in).Kind = plan.Full }), "2.3.9", "2.4.4", nil},
		{"large blocks in the copy only, without -L", all(blocks("enabled", "active", "1048576"), func(in *Input) { first(in).Send.Flags.LargeBlocks = false }), "2.3.9", "2.4.4", nil},
		{"encrypted volumes", volume("aes-256-gcm"), "2.3.7", "2.4.4", []string{"warn alpha 18412", "note alpha 18315"}},
		{"encrypted volumes 2.4", volume("aes-256-gcm"), "2.4.2", "2.4.4", []string{"warn alpha 18412", "note alpha 18315"}},
		{"encrypted volumes, fixed", volume("aes-256-gcm"), "2.3.8", "2.4.4", []string{"warn alpha 18412"}},
		{"encrypted volumes, before", volume("aes-256-gcm"), "2.2.11", "2.4.4", []string{"warn alpha 18412"}},
		{"plain volumes", volume("off"), "2.3.7", "2.4.4", []string{"warn alpha 18412"}},
		{"encrypted volumes, nothing cloned", all(volume("aes-256-gcm"), active(source)), "2.3.7", "2.4.4", nil},
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

// TestDefectRemedy expects the first fixed releases and the alternative.
func TestDefectRemedy(t *testing.T) {
	t.Parallel()
	fixes := []zfs.Release{{2, 1, 14}, {2, 3, 2}}
	require.Equal(t, "upgrade ZFS; fixed in 2.1.14 and 2.3.2; or wait", (&defect{fixed: fixes, remedy: "wait"}).remedyText())
	require.Equal(t, "wait; ZFS 2.1.14 and 2.3.2 and later prevent it in copies that they receive", (&defect{fixed: fixes, remedy: "wait", late: true}).remedyText())
	require.Equal(t, "wait", (&defect{remedy: "wait"}).remedyText())
}
