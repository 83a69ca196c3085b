package plan

import (
	"strings"

	"zxfer/pkg/zfs"
)

// chains determines the stream flags that start or continue the chain of a copy, and refuses
// streams that the target's pool cannot store.
type chains struct {
	*findings
	notedWhole bool // noted that receives cannot resume
}

// newFlags returns the flags of a new chain. It never uses -e: zfs send then writes a spill
// block, which holds larger extended attributes, as an ordinary block and silently loses them.
// Seen with OpenZFS 2.3.9; 2.4.4 has the same code, 2.1.11 different code.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (do_dump)
func (c *chains) newFlags(d *zfs.Dataset) zfs.StreamFlags {
	if c.raw(d) {
		return zfs.StreamFlags{Raw: true} // implies the others
	}
	return zfs.StreamFlags{
		LargeBlocks: c.targetTakesFlag(zfs.StreamFlags{LargeBlocks: true}),
		Compressed:  c.targetTakesFlag(zfs.StreamFlags{Compressed: true}),
	}
}

// continuedFlags returns the flags for continuing the chain of t. Large blocks must not change:
// a stream without them into a dataset that has them is refused, and the reverse has lost data.
//
// https://github.com/openzfs/zfs/issues/6224
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (recv_check_large_blocks)
func (c *chains) continuedFlags(d, t *zfs.Dataset) zfs.StreamFlags {
	f := c.newFlags(d)
	if f.Raw {
		return f
	}
	recorded, ok := recordedFlags(t)
	if !ok && c.req.Restore {
		recorded, ok = recordedFlags(d) // the copy has the record, not the original
	}
	if ok && !recorded.Raw {
		if len(c.state.Target.Pool.Features) > 0 { // the source's pool may use new features by now
			recorded.Compressed = recorded.Compressed && f.Compressed
		}
		return recorded
	}
	if !ok && t.Properties[zfs.FlagsProperty].Local() {
		c.note("%s: %s has a value that zxfer did not write, and is ignored; to clear it: %s",
			c.onTarget(t.Name), zfs.FlagsProperty, c.state.TargetAt.Command("zfs", "inherit", zfs.FlagsProperty, t.Name))
	}
	// Another tool started the chain, probably with zfs send's defaults. If not, the receive
	// fails before it changes anything.
	f.LargeBlocks = false
	if d.MayHaveLargeBlocks() && c.state.Target.Pool.Features["large_blocks"] == "active" {
		c.note("%s does not record the flags of its first stream: zxfer omits zfs send -L; if zfs then requires -L, run %s",
			c.onTarget(t.Name), c.state.TargetAt.Command("zfs", "set", zfs.FlagsProperty+"=Lc", t.Name))
	}
	return f
}

// tokenFlags returns the flags of the chain of an interrupted receive. A token records large
// blocks only if the stream contains some.
func (c *chains) tokenFlags(d, t *zfs.Dataset, token zfs.Token) zfs.StreamFlags {
	if c.raw(d) {
		return zfs.StreamFlags{Raw: true}
	}
	if f, ok := recordedFlags(t); ok && !f.Raw {
		f.LargeBlocks = f.LargeBlocks || token.Flags.LargeBlocks
		return f
	}
	f := c.newFlags(d)
	f.LargeBlocks = token.Flags.LargeBlocks
	return f
}

// targetTakesFlag reports whether the target's pool supports a flag that sends data as stored.
// Only zstd may be absent: without zstd blocks on the source, a stream does not need its
// feature.
func (c *chains) targetTakesFlag(f zfs.StreamFlags) bool {
	for _, x := range f.Features() {
		if (zfs.StreamFlags{}).Needs(x.Name) || x.Name == "zstd_compress" && c.state.Source.Pool.Features[x.Name] != "active" {
			continue
		}
		if !c.state.Target.Pool.HasFeature(x.Name) {
			return false
		}
	}
	return true
}

// checkSame refuses to mix raw and plain streams in one chain.
func (c *chains) checkSame(d, t *zfs.Dataset, out *Dataset) bool {
	source, target := c.onSource(d.Name), c.onTarget(t.Name)
	recorded, known := recordedFlags(t)
	refuse := func(hint, format string, args ...any) bool {
		c.conflict(EncryptionMixed, d.Name, out.Target, hint, format, args...)
		return false
	}
	const anew = "name another target, to send in full"
	switch raw := c.raw(d); {
	case raw && !t.Encrypted():
		return refuse(anew+"\nto continue unencrypted, load the key and add {{decrypt}}",
			"%s is encrypted and %s is not: a raw incremental stream cannot be received there", source, target)
	case raw && known && !recorded.Raw:
		return refuse(anew+"\nto continue as before, load the key and add {{decrypt}}",
			"%s was not received raw: a raw incremental stream of %s cannot be received there", target, source)
	case !raw && known && recorded.Raw && d.Encrypted():
		return refuse("omit {{decrypt}}, or "+anew,
			"%s was received raw: a decrypted incremental stream of %s would permanently prevent further raw streams (openzfs#8758)", target, source)
	}
	return true
}

// checkFeatures refuses a stream that the target's pool cannot store. newFlags drops optional
// features from plain streams.
func (c *chains) checkFeatures(d *zfs.Dataset, out *Dataset) bool {
	ok := true
	for _, x := range (zfs.StreamFlags{Raw: out.Encrypted}).Features() {
		needed := x.Name == "encryption" || c.sourceUses(x.Name) && (!x.OfDataset || uses(d, x.Name))
		if !needed || c.targetSupports(x.Name) {
			continue
		}
		ok = false
		pool := &c.state.Target.Pool
		c.conflict(FeatureMissing, d.Name, out.Target, pool.FeatureHint(c.state.TargetAt, "on "+c.state.TargetHost, x.Name),
			"pool %s lacks the feature %s, which %s requires", c.onTarget(pool.Name), x.Name, c.onSource(d.Name))
	}
	return ok
}

// uses reports whether a dataset's properties make new writes use a feature. Earlier writes may
// have used others.
func uses(d *zfs.Dataset, feature string) bool {
	if feature == "large_blocks" {
		return d.MayHaveLargeBlocks()
	}
	for _, property := range []string{"compression", "dnodesize"} {
		if zfs.FeatureOf(property, d.Get(property)) == feature {
			return true
		}
	}
	return feature == "longname" && d.Get("longname") == "on"
}

// sourceUses reports whether anything in the source's pool uses a feature. Properties cannot
// show that for one dataset: they apply to new writes only.
func (c *chains) sourceUses(feature string) bool {
	features := c.state.Source.Pool.Features
	return len(features) == 0 || features[feature] == "active"
}

// targetSupports reports whether the target's pool supports a feature. If its features are
// unknown, zfs receive decides.
func (v *view) targetSupports(feature string) bool {
	pool := &v.state.Target.Pool
	return len(pool.Features) == 0 || pool.HasFeature(feature)
}

// receiveSpec returns the receive of a stream into a target.
func (c *chains) receiveSpec(target string) zfs.ReceiveSpec {
	whole := c.state.Target.Pool.Features[zfs.ResumeFeature] == "disabled"
	if whole && !c.notedWhole {
		c.notedWhole = true
		pool := &c.state.Target.Pool
		enable, _, _ := strings.Cut(pool.FeatureHint(c.state.TargetAt, "on "+c.state.TargetHost, zfs.ResumeFeature), " (")
		c.note("pool %s lacks the feature %s: an interrupted stream restarts from the start; to enable resuming: %s", c.onTarget(pool.Name), zfs.ResumeFeature, enable)
	}
	return zfs.ReceiveSpec{Target: target, NotResumable: whole}
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
