package zfs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/remedy"
)

// SendArgs returns the arguments of zfs(8) that produce the stream, starting with "send". It
// checks every name.
func SendArgs(s SendSpec) ([]string, error) { return sendArgs(s) }

// EstimateArgs returns the arguments of zfs(8) that print the size of the stream for
// ParseEstimate.
func EstimateArgs(s SendSpec) ([]string, error) { return sendArgs(s, "-nvP") }

func sendArgs(s SendSpec, options ...string) ([]string, error) {
	args := append([]string{"send"}, options...)
	if s.Token != "" {
		// The token fixes everything else, stream flags included.
		if err := checkTokenSyntax(s.Token); err != nil {
			return nil, err
		}
		return append(args, "-t", s.Token), nil
	}
	to := s.Dataset + "@" + s.To
	if _, _, err := ParseSnapshot(to); err != nil {
		return nil, err
	}
	args = append(args, s.Flags.args()...)
	if s.From == "" {
		if len(s.Through) > 0 {
			return nil, fmt.Errorf("send %s: a full stream cannot include %d intermediate snapshots", to, len(s.Through))
		}
		return append(args, to), nil
	}
	if err := s.checkSource(); err != nil {
		return nil, fmt.Errorf("send %s: base: %w", to, err)
	}
	option := "-i"
	if len(s.Through) > 0 {
		option = "-I"
	}
	return append(args, option, s.From, to), nil
}

// args returns the options in the order of zfs(8). -w implies the others, but they are spelled
// out for readers of logs.
func (f StreamFlags) args() []string {
	var out []string
	for _, o := range []struct {
		on   bool
		name string
	}{{f.Raw, "-w"}, {f.LargeBlocks, "-L"}, {f.Embedded, "-e"}, {f.Compressed, "-c"}} {
		if o.on {
			out = append(out, o.name)
		}
	}
	return out
}

func (s SendSpec) checkSource() error {
	for _, t := range s.Through {
		if err := CheckComponent(t); err != nil {
			return err
		}
	}
	switch {
	case strings.HasPrefix(s.From, "@"):
		return CheckComponent(s.From[1:])
	case strings.HasPrefix(s.From, "#"):
		if len(s.Through) > 0 {
			return errors.New("a range (-I) cannot start at a bookmark; send the first snapshot alone")
		}
		return CheckComponent(s.From[1:])
	}
	_, _, err := ParseSnapshot(s.From) // a clone's origin
	return err
}

// ForDigest returns the flags of a stream whose ContentDigest is equal on both hosts. A raw
// stream carries blocks as they are on disk, and a raw receive keeps them. Other streams are
// compared as applications see the data, because each pool compresses and embeds blocks
// differently.
func (f StreamFlags) ForDigest() StreamFlags {
	if f.Raw {
		return f
	}
	return StreamFlags{LargeBlocks: f.LargeBlocks}
}

// ReceiveArgs returns the arguments of zfs(8) that store a stream, starting with "receive". It
// checks names and properties.
func ReceiveArgs(r ReceiveSpec) ([]string, error) {
	if _, err := ParseDataset(r.Target); err != nil {
		return nil, err
	}
	if r.Corrective {
		return correctiveArgs(r)
	}
	args := []string{"receive", "-s", "-u"}
	if r.NotResumable {
		args = []string{"receive", "-u"}
	}
	if r.Rollback {
		args = append(args, "-F")
	}
	if r.Origin != "" {
		if _, _, err := ParseSnapshot(r.Origin); err != nil {
			return nil, fmt.Errorf("receive %s: origin: %w", r.Target, err)
		}
		args = append(args, "-o", "origin="+r.Origin)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Set)) {
		if err := CheckProperty(name); err != nil {
			return nil, fmt.Errorf("receive %s: %w", r.Target, err)
		}
		if name == "origin" {
			return nil, fmt.Errorf("receive %s: the origin is chosen by the plan, not by a property", r.Target)
		}
		if err := r.checkSet(name); err != nil {
			return nil, fmt.Errorf("receive %s: %w", r.Target, err)
		}
		args = append(args, "-o", name+"="+r.Set[name])
	}
	return append(args, r.Target), nil
}

// checkSet checks a value of Set, even if the plan did so.
func (r *ReceiveSpec) checkSet(name string) error {
	value := r.Set[name]
	if !slices.Contains(r.Carried, name) {
		return CheckValue(name, value)
	}
	t := Filesystem
	if r.Arrival.Volume {
		t = Volume
	}
	if err := r.Carry.Check(t, name, value); err != nil {
		return fmt.Errorf("cannot set %s to %s: %w", name, cutValue(value), err)
	}
	return nil
}

// HealPrefix is the name prefix of the temporary snapshots into which corrective receives
// write. A corrective receive marks its snapshot permanently as half received. Such a snapshot
// can be sent and rolled back to, but neither mounted nor cloned, and an import of the pool
// destroys its clones (2.3.9, 2.4.4). The temporary snapshots share the damaged blocks and are
// destroyed afterwards.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dmu_recv_begin_sync, dmu_recv_end_sync)
const HealPrefix = "zxfer-heal-"

func correctiveArgs(r ReceiveSpec) ([]string, error) {
	if r.Rollback || r.Origin != "" || len(r.Set) > 0 || len(r.Arrival.Snapshots) != 1 {
		return nil, fmt.Errorf("receive %s: a corrective receive requires one existing snapshot, and no other change", r.Target)
	}
	name := r.Arrival.Snapshots[0].Name
	if err := CheckComponent(name); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(name, HealPrefix) {
		return nil, fmt.Errorf("receive %s: @%s does not belong to zxfer, and could not be mounted after the heal", r.Target, name)
	}
	// No -s: it would save a partially received state at the snapshot.
	return []string{"receive", "-c", r.Target + "@" + name}, nil
}

// ListVersionsArgs returns arguments that list the snapshots and bookmarks of datasets for
// ParseVersions. If recursive is set, they include descendants. OpenZFS 2.2 and later read
// these columns from the directory alone. Other columns or a sort key would open every
// snapshot.
func ListVersionsArgs(recursive bool, names ...string) []string {
	args := []string{"list", "-Hp"}
	if recursive {
		args = append(args, "-r")
	} else {
		args = append(args, "-d", "1") // versions count as children
	}
	return append(append(args, "-o", "name,guid,createtxg", "-t", "snapshot,bookmark"), names...)
}

// CommandLine quotes argv for a POSIX shell.
func CommandLine(argv []string) string {
	return remedy.Command(argv...)
}

func shellQuote(s string) string { return remedy.Word(s) }

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
	case LongnameProperty:
		if value == "on" {
			return LongnameProperty
		}
	case "filesystem_limit", "snapshot_limit":
		if !Unlimited(property, value) {
			return "filesystem_limits"
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

// FeatureHint returns advice how to get a feature of a pool of host at. The text names the host as where.
func (p *Pool) FeatureHint(at remedy.Host, where, feature string) string {
	if _, known := p.Features[feature]; known {
		return at.Command("zpool", "set", "feature@"+feature+"=enabled", p.Name) + " (an older ZFS may then no longer import the pool)"
	}
	return "upgrade ZFS " + where + ": it lacks the feature"
}

// MayHaveLargeBlocks reports whether new blocks of a dataset may be larger than 128 KiB.
func (d *Dataset) MayHaveLargeBlocks() bool {
	size := d.Get("recordsize")
	if d.Type == Volume {
		size = d.Get("volblocksize")
	}
	return FeatureOf("recordsize", size) != ""
}
