package zfs

import "slices"

// StreamFeature is a pool feature that a pool needs to receive a stream.
type StreamFeature struct {
	Name string
	// OfDataset reports that a stream needs the feature only if its dataset uses it. Otherwise
	// all streams of a pool where any dataset uses it need it.
	OfDataset bool
	carries   func(StreamFlags) bool
}

// ResumeFeature is the pool feature that resumable receives (-s) need.
const ResumeFeature = "extensible_dataset"

// streamFeatures are the features that zfs send writes into the head of a stream, and that zfs
// receive checks.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (setup_featureflags)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (recv_begin_check_feature_flags_impl)
var streamFeatures = []StreamFeature{
	{"encryption", false, func(f StreamFlags) bool { return f.Raw }},
	{"embedded_data", false, func(f StreamFlags) bool { return f.Embedded && !f.Raw }},
	{"lz4_compress", false, func(f StreamFlags) bool { return f.Raw || f.Compressed || f.Embedded }},
	{"large_blocks", true, func(f StreamFlags) bool { return f.Raw || f.LargeBlocks }},
	{"zstd_compress", true, func(f StreamFlags) bool { return f.Raw || f.Compressed }},
	{"large_dnode", true, func(StreamFlags) bool { return true }},
	{"longname", true, func(StreamFlags) bool { return true }},
	{"large_microzap", true, func(StreamFlags) bool { return true }},
}

// Features returns the features that streams with these flags may need.
func (f StreamFlags) Features() []StreamFeature {
	var out []StreamFeature
	for _, x := range streamFeatures {
		if x.carries(f) {
			out = append(out, x)
		}
	}
	return out
}

// Needs reports whether streams with these flags may need a feature.
func (f StreamFlags) Needs(feature string) bool {
	return slices.ContainsFunc(f.Features(), func(x StreamFeature) bool { return x.Name == feature })
}

// FeatureOf returns the pool feature that a property value needs, "" for none.
//
// https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpool-features.7.html
func FeatureOf(property, value string) string {
	switch property {
	case "compression":
		if value == "lz4" {
			return "lz4_compress"
		}
		if hasWord(value, "zstd") {
			return "zstd_compress"
		}
	case "checksum", "dedup":
		for _, sum := range []string{"sha512", "skein", "edonr", "blake3"} {
			if value == sum || value == sum+",verify" {
				return sum
			}
		}
	case "dnodesize":
		if value != "" && value != "legacy" {
			return "large_dnode"
		}
	case "recordsize", "volblocksize":
		if n, ok := parseSize(value); ok && n > smallBlock {
			return "large_blocks"
		}
	}
	return ""
}

// smallBlock is the largest block, in bytes, of a pool without the feature large_blocks.
const smallBlock = 128 << 10

// Enabling returns advice how to get a feature. The parameter names the host of the pool.
func (p *Pool) Enabling(where, feature string) string {
	if _, known := p.Features[feature]; known {
		return CommandLine([]string{"zpool", "set", "feature@" + feature + "=enabled", p.Name}) + " (an older ZFS may then no longer import the pool)"
	}
	return "upgrade ZFS " + where + ": it does not know the feature"
}
