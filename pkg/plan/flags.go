package plan

import (
	"fmt"
	"strings"

	"zxfer/pkg/zfs"
)

func flagString(f zfs.StreamFlags) string {
	if f.Raw {
		return "w"
	}
	s := ""
	for _, o := range []struct {
		on bool
		c  string
	}{{f.LargeBlocks, "L"}, {f.Embedded, "e"}, {f.Compressed, "c"}} {
		if o.on {
			s += o.c
		}
	}
	if s == "" {
		return "none"
	}
	return s
}

func parseFlags(s string) (zfs.StreamFlags, bool) {
	switch {
	case s == "none":
		return zfs.StreamFlags{}, true
	case s == "" || strings.Trim(s, "wLec") != "":
		return zfs.StreamFlags{}, false
	}
	return zfs.StreamFlags{
		Raw: strings.Contains(s, "w"), LargeBlocks: strings.Contains(s, "L"),
		Embedded: strings.Contains(s, "e"), Compressed: strings.Contains(s, "c"),
	}, true
}

// recordedFlags are the flags that a dataset's chain began with. What it
// inherits was recorded for another.
func recordedFlags(t *zfs.Dataset) (zfs.StreamFlags, bool) {
	p := t.Properties[zfs.FlagsProperty]
	if !p.Local() {
		return zfs.StreamFlags{}, false
	}
	return parseFlags(p.Value)
}

// flags chooses the stream flags of a chain: t is the dataset that it goes on
// in, nil for the first stream.
func (p *planner) flags(d, t *zfs.Dataset, out *Dataset) (zfs.StreamFlags, bool) {
	raw := d.Encrypted() && !p.req.Decrypt
	if t != nil && !p.sameKind(d, t, out, raw) {
		return zfs.StreamFlags{}, false
	}
	if !p.features(d, out, raw) {
		return zfs.StreamFlags{}, false
	}
	if raw {
		return zfs.StreamFlags{Raw: true}, true
	}
	if t != nil {
		if f, ok := recordedFlags(t); ok && !f.Raw {
			return f, true
		}
	}
	pool := &p.state.Target.Pool
	f := zfs.StreamFlags{
		LargeBlocks: pool.FeatureOn("large_blocks"),
		Embedded:    pool.FeatureOn("embedded_data"),
		Compressed:  pool.FeatureOn("lz4_compress") && (pool.FeatureOn("zstd_compress") || !p.state.Source.Pool.FeatureOn("zstd_compress")),
	}
	if t != nil {
		// Another tool began the chain. Without large blocks the flag makes
		// no difference; with them, it most likely was what zfs send does by
		// itself, and changing it breaks the chain.
		f.LargeBlocks = false
		if largeBlocks(d) {
			p.note("%s was not first received by zxfer: going on without -L, as zfs send does by itself (set %s=Lec on it if the chain was begun with -L)", t.Name, zfs.FlagsProperty)
		}
	}
	return f, true
}

// largeBlocks tells whether a dataset's blocks may be larger than 128 KiB.
func largeBlocks(d *zfs.Dataset) bool {
	size := d.Get("recordsize")
	if d.Type == zfs.Volume {
		size = d.Get("volblocksize")
	}
	var n uint64
	_, err := fmt.Sscan(size, &n)
	return err == nil && n > 128<<10
}

// sameKind refuses to mix raw and decrypted streams in one chain.
func (p *planner) sameKind(d, t *zfs.Dataset, out *Dataset, raw bool) bool {
	source, target := on(p.state.SourceHost, d.Name), on(p.state.TargetHost, t.Name)
	hint := "send to another name, in full"
	recorded, known := recordedFlags(t)
	switch {
	case raw && !t.Encrypted():
		p.conflict(EncryptionMixed, d.Name, out.Target,
			fmt.Sprintf("%s is encrypted and %s is not: a raw increment cannot go on in it", source, target),
			hint+"\n--decrypt goes on decrypted; the key must be loaded")
	case raw && known && !recorded.Raw:
		p.conflict(EncryptionMixed, d.Name, out.Target,
			fmt.Sprintf("%s was received decrypted: a raw increment of %s cannot go on in it", target, source), hint+"\n--decrypt goes on decrypted")
	case !raw && known && recorded.Raw:
		p.conflict(EncryptionMixed, d.Name, out.Target,
			fmt.Sprintf("%s was received raw: one decrypted increment would end its chain (openzfs#8758)", target), "leave --decrypt out")
	default:
		return true
	}
	return false
}

// features refuses a stream that the target's pool cannot store. A pool whose
// features are unknown is not judged.
func (p *planner) features(d *zfs.Dataset, out *Dataset, raw bool) bool {
	pool := &p.state.Target.Pool
	if len(pool.Features) == 0 {
		return true
	}
	var need []string
	if raw {
		need = append(need, "encryption")
		if largeBlocks(d) {
			need = append(need, "large_blocks")
		}
	}
	if size := d.Get("dnodesize"); size != "" && size != "legacy" {
		need = append(need, "large_dnode")
	}
	if strings.HasPrefix(d.Get("compression"), "zstd") {
		need = append(need, "zstd_compress")
	}
	ok := true
	for _, f := range need {
		if pool.FeatureOn(f) {
			continue
		}
		ok = false
		p.conflict(FeatureMissing, d.Name, out.Target,
			fmt.Sprintf("pool %s does not have the feature %s, which %s uses", on(p.state.TargetHost, pool.Name), f, on(p.state.SourceHost, d.Name)),
			fmt.Sprintf("zpool set feature@%s=enabled %s (older ZFS may then no longer import the pool)", f, pool.Name))
	}
	return ok
}
