package plan

import (
	"strings"

	"zxfer/pkg/zfs"
)

func (p *planner) raw(d *zfs.Dataset) bool { return d.Encrypted() && !p.req.Decrypt }

// newFlags returns the flags of a new chain. It never uses -e: zfs send then writes a spill
// block, which holds larger extended attributes, as an ordinary block and silently loses them.
// Seen with OpenZFS 2.3.9; 2.4.4 has the same code, 2.1.11 different code.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (do_dump)
func (p *planner) newFlags(d *zfs.Dataset) zfs.StreamFlags {
	if p.raw(d) {
		return zfs.StreamFlags{Raw: true} // implies the others
	}
	return zfs.StreamFlags{
		LargeBlocks: p.targetTakesFlag(zfs.StreamFlags{LargeBlocks: true}),
		Compressed:  p.targetTakesFlag(zfs.StreamFlags{Compressed: true}),
	}
}

// continuedFlags returns the flags for continuing the chain of t. Large blocks must not change:
// a stream without them into a dataset that has them is refused, and the reverse has lost data.
//
// https://github.com/openzfs/zfs/issues/6224
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (recv_check_large_blocks)
func (p *planner) continuedFlags(d, t *zfs.Dataset) zfs.StreamFlags {
	f := p.newFlags(d)
	if f.Raw {
		return f
	}
	recorded, ok := recordedFlags(t)
	if !ok && p.req.Restore {
		recorded, ok = recordedFlags(d) // the copy has the record, not the original
	}
	if ok && !recorded.Raw {
		if len(p.state.Target.Pool.Features) > 0 { // the source's pool may use new features by now
			recorded.Compressed = recorded.Compressed && f.Compressed
		}
		return recorded
	}
	if !ok && t.Properties[zfs.FlagsProperty].Local() {
		p.note("%s: %s holds nothing that zxfer wrote, and is passed over; to clear it there: %s",
			p.onTarget(t.Name), zfs.FlagsProperty, command("zfs", "inherit", zfs.FlagsProperty, t.Name))
	}
	// Another tool started the chain, probably with zfs send's defaults. If not, the receive
	// fails before it changes anything.
	f.LargeBlocks = false
	if largeBlocks(d) && p.state.Target.Pool.Features["large_blocks"] == "active" {
		p.note("%s does not record how its chain began: going on without zfs send -L; if zfs then asks for -L, run %s there",
			p.onTarget(t.Name), command("zfs", "set", zfs.FlagsProperty+"=Lc", t.Name))
	}
	return f
}

// tokenFlags returns the flags of the chain of an interrupted receive. A token records large
// blocks only if the stream contains some.
func (p *planner) tokenFlags(d, t *zfs.Dataset, token zfs.Token) zfs.StreamFlags {
	if p.raw(d) {
		return zfs.StreamFlags{Raw: true}
	}
	if f, ok := recordedFlags(t); ok && !f.Raw {
		f.LargeBlocks = f.LargeBlocks || token.Flags.LargeBlocks
		return f
	}
	f := p.newFlags(d)
	f.LargeBlocks = token.Flags.LargeBlocks
	return f
}

// targetTakesFlag reports whether the target's pool supports a flag that sends data as stored.
// Only zstd may be absent: without zstd blocks on the source, a stream does not need its
// feature.
func (p *planner) targetTakesFlag(f zfs.StreamFlags) bool {
	for _, x := range f.Features() {
		if (zfs.StreamFlags{}).Needs(x.Name) || x.Name == "zstd_compress" && p.state.Source.Pool.Features[x.Name] != "active" {
			continue
		}
		if !p.state.Target.Pool.FeatureOn(x.Name) {
			return false
		}
	}
	return true
}

// largeBlocks reports whether a dataset may have blocks larger than 128 KiB.
func largeBlocks(d *zfs.Dataset) bool {
	size := d.Get("recordsize")
	if d.Type == zfs.Volume {
		size = d.Get("volblocksize")
	}
	return zfs.FeatureOf("recordsize", size) != ""
}

// checkSameChain refuses to mix raw and plain streams in one chain.
func (p *planner) checkSameChain(d, t *zfs.Dataset, out *Dataset) bool {
	source, target := p.onSource(d.Name), p.onTarget(t.Name)
	recorded, known := recordedFlags(t)
	refuse := func(hint, format string, args ...any) bool {
		p.conflict(EncryptionMixed, d.Name, out.Target, hint, format, args...)
		return false
	}
	const anew = "name another target: it is then sent in full"
	switch raw := p.raw(d); {
	case raw && !t.Encrypted():
		return refuse(anew+"\n{{decrypt}} goes on unencrypted, with the key loaded",
			"%s is encrypted and %s is not: a raw increment cannot be received there", source, target)
	case raw && known && !recorded.Raw:
		return refuse(anew+"\n{{decrypt}} goes on as before, with the key loaded",
			"%s was not received raw: a raw increment of %s cannot be received there", target, source)
	case !raw && known && recorded.Raw && d.Encrypted():
		return refuse("leave {{decrypt}} out, or "+anew,
			"%s was received raw: one decrypted increment of %s would end its chain for ever (openzfs#8758)", target, source)
	case !raw && t.Encrypted():
		return p.checkTargetKey(d, out, t)
	}
	return true
}

// recordedFlags returns the flags that a dataset's chain started with. Inherited values belong
// to another dataset and do not count.
func recordedFlags(t *zfs.Dataset) (zfs.StreamFlags, bool) {
	r := t.Properties[zfs.FlagsProperty]
	if !r.Local() {
		return zfs.StreamFlags{}, false
	}
	return parseFlags(r.Value)
}

// flagString encodes stream flags for zfs.FlagsProperty: letters of zfs send, or "none".
func flagString(f zfs.StreamFlags) string {
	if f.Raw {
		return "w"
	}
	s := ""
	for _, o := range []struct {
		on     bool
		letter string
	}{{f.LargeBlocks, "L"}, {f.Compressed, "c"}} {
		if o.on {
			s += o.letter
		}
	}
	if s == "" {
		return "none"
	}
	return s
}

// parseFlags decodes flagString's format. It ignores the "e" of earlier versions (see
// newFlags).
func parseFlags(s string) (zfs.StreamFlags, bool) {
	if s == "none" {
		return zfs.StreamFlags{}, true
	}
	if s == "" || strings.Trim(s, "wLec") != "" {
		return zfs.StreamFlags{}, false
	}
	return zfs.StreamFlags{
		Raw: strings.Contains(s, "w"), LargeBlocks: strings.Contains(s, "L"), Compressed: strings.Contains(s, "c"),
	}, true
}
