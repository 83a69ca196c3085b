package plan

import (
	"strings"

	"zxfer/pkg/zfs"
)

// flagString writes stream flags for zfs.FlagsProperty: the letters of zfs
// send, "none" where there are none.
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

// parseFlags reads what flagString wrote; an "e" of earlier versions is passed
// over (see choose).
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

// recordedFlags are the flags that a dataset's chain began with. What it
// inherits was recorded for another.
func recordedFlags(t *zfs.Dataset) (zfs.StreamFlags, bool) {
	r := t.Properties[zfs.FlagsProperty]
	if !r.Local() {
		return zfs.StreamFlags{}, false
	}
	return parseFlags(r.Value)
}

func (p *planner) raw(d *zfs.Dataset) bool { return d.Encrypted() && !p.req.Decrypt }

// choose returns the flags of a new chain. Blocks are never sent embedded (-e):
// zfs send then writes a spill block, which holds a file's larger extended
// attributes, as an ordinary one, and they are lost without a word. Seen with
// OpenZFS 2.3.9; 2.4.4 has the same lines, 2.1.11 has others.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (do_dump)
func (p *planner) choose(d *zfs.Dataset) zfs.StreamFlags {
	if p.raw(d) {
		return zfs.StreamFlags{Raw: true} // brings the others
	}
	return zfs.StreamFlags{
		LargeBlocks: p.letter(zfs.StreamFlags{LargeBlocks: true}),
		Compressed:  p.letter(zfs.StreamFlags{Compressed: true}),
	}
}

// goOn returns the flags of a chain that t began with. Large blocks are the
// one that must not change on the way: a stream without them into a dataset
// that has them is refused, the reverse has lost data.
//
// https://github.com/openzfs/zfs/issues/6224
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (recv_check_large_blocks)
func (p *planner) goOn(d, t *zfs.Dataset) zfs.StreamFlags {
	f := p.choose(d)
	if f.Raw {
		return f
	}
	recorded, ok := recordedFlags(t)
	if !ok && p.req.Restore {
		recorded, ok = recordedFlags(d) // of the original nobody recorded it, of its copy somebody did
	}
	if ok && !recorded.Raw {
		if len(p.state.Target.Pool.Features) > 0 { // what the source's pool came to use since
			recorded.Compressed = recorded.Compressed && f.Compressed
		}
		return recorded
	}
	if !ok && t.Properties[zfs.FlagsProperty].Local() {
		p.note("%s: %s holds nothing that zxfer wrote, and is passed over; to clear it there: %s",
			p.onTarget(t.Name), zfs.FlagsProperty, command("zfs", "inherit", zfs.FlagsProperty, t.Name))
	}
	// Another tool began the chain, most likely as zfs send does by itself.
	// If that is wrong, the receive says so before it changes anything.
	f.LargeBlocks = false
	if largeBlocks(d) && p.state.Target.Pool.Features["large_blocks"] == "active" {
		p.note("%s does not record how its chain began: going on without zfs send -L; if zfs then asks for -L, run %s there",
			p.onTarget(t.Name), command("zfs", "set", zfs.FlagsProperty+"=Lc", t.Name))
	}
	return f
}

// largeBlocks tells whether a dataset's blocks may be larger than 128 KiB.
func largeBlocks(d *zfs.Dataset) bool {
	size := d.Get("recordsize")
	if d.Type == zfs.Volume {
		size = d.Get("volblocksize")
	}
	return zfs.FeatureOf("recordsize", size) != ""
}

// sameChain refuses to mix raw and other streams in one chain.
func (p *planner) sameChain(d, t *zfs.Dataset, out *Dataset) bool {
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

// watchChain has CheckIVSets look at the base of an increment.
func (p *planner) watchChain(d, t *zfs.Dataset, out *Dataset, base, there zfs.Version) {
	if d.Encrypted() && t.Encrypted() {
		out.chain = &chain{source: base.In(d.Name), target: there.In(t.Name), guid: base.GUID, raw: p.raw(d)}
	}
}
