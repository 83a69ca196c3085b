package preflight

import (
	"cmp"
	"fmt"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// feature is a pool feature that streams depend on.
type feature struct {
	name string
	// refused reports whether zfs receive refuses a stream that uses the feature. Otherwise the
	// data arrives in another form.
	refused   bool
	encrypted bool // only encrypted datasets use it
	what      string
}

// streamFeatures returns the features that change or prevent a receive if the target's pool
// lacks them. Package plan adds a conflict if a dataset is known to use one; here it is only
// known that something in the source's pool does.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zfs/dmu_recv.c (recv_begin_check_feature_flags_impl)
func streamFeatures() []feature {
	return []feature{
		{"large_blocks", false, false, "blocks of more than 128 KiB are split on their way"},
		{"embedded_data", false, false, "very small blocks take a block each on arrival"},
		{"lz4_compress", false, false, "data is sent unpacked"},
		{"zstd_compress", false, false, "data is sent unpacked, and compressed in another way on arrival"},
		{zfs.ResumeFeature, false, false, "a stream that is cut off begins anew"},
		{"large_dnode", true, false, "a dataset with large dnodes cannot be received"},
		{"large_microzap", true, false, "a dataset with large directories in one block cannot be received"},
		{"longname", true, false, "a dataset with file names of more than 255 bytes cannot be received"},
		{"redacted_datasets", true, false, "a redacted dataset cannot be received"},
		{"encryption", true, true, "an encrypted dataset cannot be received raw"},
		{"bookmark_v2", true, true, "a bookmark of an encrypted dataset cannot be made there"},
	}
}

// features compares the features in use on the source with those of the target's pool.
func features(in *Input) []finding.Finding {
	source, target := &in.SourceListing.Pool, &in.TargetListing.Pool
	if in.Plan.Steps() == 0 || len(source.Features) == 0 || len(target.Features) == 0 {
		return nil
	}
	var out []finding.Finding
	for _, x := range streamFeatures() {
		if source.Features[x.name] != "active" || target.FeatureOn(x.name) || x.encrypted && !in.Plan.Encrypted() {
			continue
		}
		f := finding.Finding{Host: in.Target.Name, Severity: finding.Note, Summary: fmt.Sprintf("pool %s uses the feature %s, pool %s lacks it: %s", source.Name, x.name, target.Name, x.what),
			Evidence: fmt.Sprintf("zpool get feature@%s: %s on %s, %s on %s", x.name, source.Features[x.name], source.Name, cmp.Or(target.Features[x.name], "unknown"), target.Name),
			Remedy:   target.Enabling("there", x.name)}
		if x.refused {
			f.Severity = finding.Warn
		}
		out = append(out, f)
	}
	return out
}
