package zfs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxLine is the largest length of one value in bytes. Properties have at most 8 KiB, but
// resume tokens and lists of clones may be longer.
const maxLine = 1 << 20

// eachLine calls f with every line, without its line feed. It keeps carriage returns.
func eachLine(text string, f func(line string) error) error {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if len(line) > maxLine+1 {
			return fmt.Errorf("line %d: got one of %d bytes, expected at most %d", n, len(line), maxLine)
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
			return fmt.Errorf("got %d fields in %q, expected name, guid and createtxg parted by tabs", len(f), line)
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
		err = fmt.Errorf("got no line that begins with size, expected one (the last line is %q)", last)
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
