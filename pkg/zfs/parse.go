package zfs

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Query reads properties of datasets and versions with zfs get, which prints values unescaped.
// Values of free text may contain tabs and line breaks, and they are untrusted.
//
// After each such property, a Query requests a fence: a user property with a random name that
// nobody has set. A value that was stored earlier cannot contain this name. So everything
// between a property's name and its fence is its value and source. zfs get prints properties
// in the requested order, also repeated ones.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zfs/zfs_main.c (get_callback)
type Query struct {
	properties []string
	fence      string
}

// NewQuery returns a Query. secret must be random and used once.
func NewQuery(secret [16]byte, properties ...string) Query {
	return Query{properties, "zxfer:fence-" + hex.EncodeToString(secret[:])}
}

// GetArgs returns arguments that read the properties of datasets and versions, for Parse.
func (q Query) GetArgs(names []string) []string {
	return append(append(getArgs(), q.list()), names...)
}

// SurveyArgs returns arguments that read the properties of datasets, for ParseSurvey. If
// recursive is set, they include descendants.
func (q Query) SurveyArgs(recursive bool, names ...string) []string {
	args := append(getArgs(), "-t", "filesystem,volume")
	if recursive {
		args = append(args, "-r")
	}
	return append(append(args, q.list()), names...)
}

func getArgs() []string { return []string{"get", "-Hp", "-o", "name,property,value,source"} }

func (q Query) list() string {
	var out []string
	for _, p := range q.properties {
		if out = append(out, p); freeText(p) {
			out = append(out, q.fence)
		}
	}
	return strings.Join(out, ",")
}

// Parse parses the output of GetArgs or SurveyArgs. It returns properties by the name of the
// dataset or version.
func (q Query) Parse(printed string) (map[string]map[string]Property, error) {
	out := map[string]map[string]Property{}
	var name, property string // of a record that a fence terminates
	var text []byte
	add := func(value, source string) error {
		m := out[name]
		if m == nil {
			m = map[string]Property{}
			out[name] = m
		}
		p := Property{Value: value, Source: source}
		if other, twice := m[property]; twice && other != p {
			return fmt.Errorf("got two values of %s of %s, %q and %q", property, name, other.Value, p.Value)
		}
		m[property], property, text = p, "", text[:0]
		return nil
	}
	err := eachLine(printed, func(line string) error {
		if property == "" {
			f := strings.SplitN(line, "\t", 3)
			if len(f) < 3 || f[0] == "" || !slices.Contains(q.properties, f[1]) {
				return fmt.Errorf("got %q, expected name, property, value and source", line)
			}
			name, property = f[0], f[1]
			if freeText(property) {
				text = append(text, f[2]...)
				return nil
			}
			value, source, _ := strings.Cut(f[2], "\t")
			if strings.Count(f[2], "\t") != 1 {
				return fmt.Errorf("got %q, expected name, property, value and source", line)
			}
			return add(value, source)
		}
		if line != name+"\t"+q.fence+"\t-\t-" {
			if text = append(append(text, '\n'), line...); len(text) > maxLine {
				return fmt.Errorf("got a value of %s of %s without an end, expected one of at most %d bytes", property, name, maxLine)
			}
			return nil
		}
		i := bytes.LastIndexByte(text, '\t')
		if i < 0 {
			return fmt.Errorf("got %q for %s of %s, expected value and source", text, property, name)
		}
		return add(string(text[:i]), string(text[i+1:]))
	})
	if err == nil && property != "" {
		err = fmt.Errorf("it ends within %s of %s", property, name)
	}
	if err != nil {
		return nil, fmt.Errorf("output of zfs get: %w", err)
	}
	return out, nil
}

// ParseSurvey parses the output of SurveyArgs. It returns datasets sorted by name, without
// versions.
func (q Query) ParseSurvey(text string) ([]*Dataset, error) {
	rows, err := q.Parse(text)
	if err != nil {
		return nil, err
	}
	out := make([]*Dataset, 0, len(rows))
	for name, props := range rows {
		d := &Dataset{Name: name, Properties: props, Type: Type(props["type"].Value)}
		if d.Type != Filesystem && d.Type != Volume {
			return nil, fmt.Errorf("output of zfs get: type of %s: got %q, expected filesystem or volume", name, d.Type)
		}
		if d.GUID, err = ParseGUID(props["guid"].Value); err != nil {
			return nil, fmt.Errorf("output of zfs get: guid of %s: %w", name, err)
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *Dataset) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// LocalArgs returns arguments that list the properties set on the datasets themselves, for
// ParseLocal.
func LocalArgs(names []string) []string {
	return append([]string{"get", "-H", "-o", "property", "-s", "local", "all"}, names...)
}

// ParseLocal parses the output of LocalArgs. It returns each name once, sorted.
func ParseLocal(text string) ([]string, error) {
	var out []string
	err := eachLine(text, func(line string) error {
		out = append(out, line)
		return CheckProperty(line)
	})
	if err != nil {
		return nil, fmt.Errorf("output of zfs get: %w", err)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// PoolArgs returns the arguments of zpool(8) for ParsePool. It does not request "all", because
// a pool's comment may contain any text. zpool skips features that it does not know, but refuses
// properties. OpenZFS before 2.2 refuses that of clones.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zpool/zpool_main.c (get_callback)
func PoolArgs(pool string, clones bool) []string {
	properties := poolProperties
	if clones {
		properties += ",bclonesaved"
	}
	return append(append([]string{"get"}, "-Hp", "-o", "name,property,value,source"),
		properties+",feature@"+strings.ReplaceAll(poolFeatures, " ", ",feature@"), pool)
}

const poolProperties = "size,capacity,health,guid,free,allocated,fragmentation,readonly,ashift,dedupratio"

// poolFeatures are the pool features of OpenZFS up to 2.4.
//
// https://github.com/openzfs/zfs/blob/zfs-2.4.4/module/zcommon/zfeature_common.c
const poolFeatures = "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram enabled_txg " +
	"hole_birth zpool_checkpoint spacemap_v2 extensible_dataset bookmarks filesystem_limits embedded_data livelist " +
	"log_spacemap large_blocks large_dnode sha512 skein edonr redaction_bookmarks redacted_datasets bookmark_written " +
	"device_removal obsolete_counts userobj_accounting bookmark_v2 encryption project_quota allocation_classes " +
	"resilver_defer device_rebuild zstd_compress draid zilsaxattr head_errlog blake3 block_cloning " +
	"block_cloning_endian vdev_zaps_v2 redaction_list_spill raidz_expansion fast_dedup longname large_microzap " +
	"dynamic_gang_header physical_rewrite"

// ParsePool parses the output of PoolArgs.
func ParsePool(text string) (Pool, error) {
	p := Pool{Properties: map[string]string{}, Features: map[string]string{}}
	err := eachLine(text, func(line string) error {
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[0] == "" || f[1] == "" {
			return fmt.Errorf("got %q, expected name, property, value and source", line)
		}
		if p.Name != "" && p.Name != f[0] {
			return fmt.Errorf("got pool %q after %q, expected one", f[0], p.Name)
		}
		p.Name = f[0]
		if feature, ok := strings.CutPrefix(f[1], "feature@"); ok {
			p.Features[feature] = f[2]
		} else {
			p.Properties[f[1]] = f[2]
		}
		return nil
	})
	if err != nil {
		return Pool{}, fmt.Errorf("output of zpool get: %w", err)
	}
	if p.GUID, err = ParseGUID(p.Properties["guid"]); err != nil {
		return Pool{}, fmt.Errorf("output of zpool get: guid of %q: %w", p.Name, err)
	}
	return p, nil
}

// maxLine is the largest length of one value in bytes. Properties have at most 8 KiB, but
// resume tokens and lists of clones may be longer.
const maxLine = 1 << 20

// eachLine calls f with every line, without its line feed. It keeps carriage returns.
func eachLine(text string, f func(line string) error) error {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if len(line) > maxLine+1 {
			return fmt.Errorf("line %d: got %d bytes, expected at most %d", n, len(line), maxLine)
		}
		if err := f(strings.TrimSuffix(line, "\n")); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return nil
}

// ParseVersions parses the output of ListVersionsArgs. It returns the versions of each dataset
// in the order of SortVersions.
func ParseVersions(text string) (map[string][]Version, error) {
	out := map[string][]Version{}
	err := eachLine(text, func(line string) error {
		f := strings.Split(line, "\t")
		if len(f) != 3 {
			return fmt.Errorf("got %d fields in %q, expected name, guid and createtxg, separated by tabs", len(f), line)
		}
		i := strings.IndexAny(f[0], "@#")
		if i < 0 {
			return fmt.Errorf("got %q, expected a snapshot or bookmark", f[0])
		}
		guid, err := ParseGUID(f[1])
		if err != nil {
			return fmt.Errorf("guid of %s: %w", f[0], err)
		}
		txg, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			return fmt.Errorf("createtxg of %s: got %q, expected a decimal number", f[0], f[2])
		}
		ds := f[0][:i]
		out[ds] = append(out[ds], Version{Kind: VersionKind(f[0][i]), Name: f[0][i+1:], GUID: guid, CreateTXG: txg})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("output of zfs list: %w", err)
	}
	for _, v := range out {
		SortVersions(v)
	}
	return out, nil
}

// SortVersions orders versions by creation, a bookmark before its snapshot, and then by name.
func SortVersions(v []Version) {
	slices.SortFunc(v, func(a, b Version) int {
		return cmp.Or(
			cmp.Compare(a.CreateTXG, b.CreateTXG),
			cmp.Compare(a.Kind, b.Kind), // "#" < "@"
			cmp.Compare(a.Name, b.Name),
		)
	})
}

// ParseEstimate parses the output of EstimateArgs and returns the size of the stream in bytes.
// It ignores all other lines.
func ParseEstimate(text string) (uint64, error) {
	var size uint64
	found, last := false, ""
	err := eachLine(text, func(line string) error {
		last = line
		value, ok := strings.CutPrefix(line, "size\t")
		if !ok {
			return nil
		}
		var err error
		if size, err = strconv.ParseUint(value, 10, 64); err != nil {
			return fmt.Errorf("got size %q, expected a number of bytes", value)
		}
		found = true
		return nil
	})
	if err == nil && !found {
		err = fmt.Errorf("got no line that starts with size (the last line is %q)", last)
	}
	if err != nil {
		return 0, fmt.Errorf("output of zfs send -nvP: %w", err)
	}
	return size, nil
}

// ParseHolds parses zfs holds -H and returns the tags of each snapshot by full name. A tag may
// contain any text, even a row of another snapshot. If the number of tags differs from the
// snapshot's userrefs, use ParseHoldsOf.
func ParseHolds(text string) (map[string][]string, error) {
	out := map[string][]string{}
	err := eachLine(text, func(line string) error {
		f := strings.Split(line, "\t")
		if len(f) != 3 {
			return fmt.Errorf("got %q, expected name, tag and time", line)
		}
		out[f[0]] = append(out[f[0]], f[1])
		return nil
	})
	return out, err
}

// ParseHoldsOf parses zfs holds -H of a single snapshot. Its result is exact for any tag.
func ParseHoldsOf(snapshot, text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	rows := strings.Split("\n"+strings.TrimSuffix(text, "\n"), "\n"+snapshot+"\t")
	if rows[0] != "" {
		return nil, fmt.Errorf("output of zfs holds: got %q, expected name, tag and time of %s", rows[0], snapshot)
	}
	for i, row := range rows {
		rows[i] = row[:max(0, strings.LastIndexByte(row, '\t'))]
	}
	return rows[1:], nil
}

// Mount is the mountpoint (At) of a filesystem or snapshot (Of).
type Mount struct{ At, Of string }

// ParseMounts returns the mounts of a pool from the contents of a mountinfo(5) file. zpool
// status prints paths by mounts, not by the mountpoint property.
func ParseMounts(mountinfo, pool string) (all []Mount) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		place, of := strings.Fields(before), strings.Fields(after)
		if len(place) < 5 || len(of) < 2 || of[0] != "zfs" {
			continue
		}
		m := Mount{At: mountinfoEscapes.Replace(place[4]), Of: mountinfoEscapes.Replace(of[1])}
		if dataset, _, _ := strings.Cut(m.Of, "@"); PoolOf(dataset) == pool {
			all = append(all, m)
		}
	}
	return all
}

// mountinfoEscapes decodes the kernel's escapes of separators in mountinfo.
var mountinfoEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

// ModuleVersion returns the version of the kernel module in the output of `zfs version`, or "".
func ModuleVersion(text string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, "zfs-kmod-"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
