package zfs

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxLine bounds one line of output: a property's value has at most 8 KiB, a
// resume token or a list of clones may be longer.
const maxLine = 1 << 20

// eachLine calls f with every line and its number from 1.
func eachLine(r io.Reader, f func(n int, line string) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	n := 0
	for sc.Scan() {
		n++
		if err := f(n, sc.Text()); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// ParseVersions parses the output of ListVersionsArgs: the versions of each
// dataset in order of creation, a bookmark before the snapshot it was made of.
func ParseVersions(r io.Reader) (map[string][]Version, error) {
	out := map[string][]Version{}
	err := eachLine(r, func(_ int, line string) error {
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

// SortVersions orders versions by creation, a bookmark before the snapshot it
// was made of, and otherwise by name.
func SortVersions(v []Version) {
	slices.SortFunc(v, func(a, b Version) int {
		return cmp.Or(
			cmp.Compare(a.CreateTXG, b.CreateTXG),
			cmp.Compare(a.Kind, b.Kind), // "#" < "@"
			cmp.Compare(a.Name, b.Name),
		)
	})
}

// A Row is one line of zfs get or zpool get.
type row struct{ name, property, value, source string }

// eachRow parses name, property, value and source parted by tabs. The value
// of a user property may itself hold tabs and newlines: such a row has more
// tabs, or goes on in the following lines. One with a tab before a newline
// cannot be told from two rows, and is refused where that shows.
func eachRow(r io.Reader, f func(row) error) error {
	pending := ""
	err := eachLine(r, func(_ int, line string) error {
		if pending != "" {
			line = pending + "\n" + line
			pending = ""
		}
		if strings.Count(line, "\t") < 3 {
			if len(line) > maxLine {
				return fmt.Errorf("got %d bytes without an end, expected a row of at most %d", len(line), maxLine)
			}
			if pending = line; pending == "" {
				return fmt.Errorf("got an empty line, expected name, property, value and source")
			}
			return nil
		}
		name, rest, _ := strings.Cut(line, "\t")
		property, rest, _ := strings.Cut(rest, "\t")
		i := strings.LastIndexByte(rest, '\t')
		if name == "" || property == "" || strings.Contains(name, "\n") || strings.Contains(property, "\n") {
			return fmt.Errorf("got %q, expected name, property, value and source", line)
		}
		return f(row{name, property, rest[:i], rest[i+1:]})
	})
	if err == nil && pending != "" {
		err = fmt.Errorf("got %q at the end, expected name, property, value and source parted by tabs", pending)
	}
	return err
}

// ParseProperties parses the output of GetArgs or SurveyArgs: properties by
// the name of the dataset or version.
func ParseProperties(r io.Reader) (map[string]map[string]Property, error) {
	out := map[string]map[string]Property{}
	err := eachRow(r, func(row row) error {
		m := out[row.name]
		if m == nil {
			m = map[string]Property{}
			out[row.name] = m
		}
		p := Property{Value: row.value, Source: row.source}
		// Whoever may set a user property of one dataset can write rows of others
		// into it: that one is encrypted, for all, decides what leaves the host.
		if other, twice := m[row.property]; twice && other != p {
			return fmt.Errorf("got two values of %s of %s, %q and %q: a user property of one dataset may hold lines about others", row.property, row.name, other.Value, p.Value)
		}
		m[row.property] = p
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("output of zfs get: %w", err)
	}
	return out, nil
}

// ParseSurvey parses the output of SurveyArgs: datasets sorted by name,
// without versions.
func ParseSurvey(r io.Reader) ([]*Dataset, error) {
	rows, err := ParseProperties(r)
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

// ParsePool parses the output of PoolArgs.
func ParsePool(r io.Reader) (Pool, error) {
	p := Pool{Properties: map[string]string{}, Features: map[string]string{}}
	err := eachRow(r, func(row row) error {
		if p.Name != "" && p.Name != row.name {
			return fmt.Errorf("got pool %q after %q, expected one", row.name, p.Name)
		}
		p.Name = row.name
		if feature, ok := strings.CutPrefix(row.property, "feature@"); ok {
			p.Features[feature] = row.value
		} else {
			p.Properties[row.property] = row.value
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

// ParseEstimate parses the output of EstimateArgs: the size of the stream in
// bytes. What zfs prints besides (the token's contents, a line per snapshot)
// is passed over.
func ParseEstimate(r io.Reader) (uint64, error) {
	var size uint64
	found, last := false, ""
	err := eachLine(r, func(_ int, line string) error {
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

// Versions are those of the tools and of the kernel module, such as
// "2.3.9-1". They differ after an upgrade without a reboot.
type Versions struct {
	Userland string `json:"userland"`
	Module   string `json:"module"`
}

// ParseVersionOutput parses the output of zfs version. Module stays "" where
// the module is not loaded.
func ParseVersionOutput(r io.Reader) (Versions, error) {
	var v Versions
	err := eachLine(r, func(_ int, line string) error {
		if m, ok := strings.CutPrefix(line, "zfs-kmod-"); ok {
			v.Module = m
		} else if u, ok := strings.CutPrefix(line, "zfs-"); ok {
			v.Userland = u
		}
		return nil
	})
	if err == nil && v.Userland == "" {
		err = fmt.Errorf(`got no line that begins with "zfs-", expected one`)
	}
	if err != nil {
		return Versions{}, fmt.Errorf("output of zfs version: %w", err)
	}
	return v, nil
}

// ParseHolds reads zfs holds -H: the tags of each snapshot, by full name.
func ParseHolds(r io.Reader) (map[string][]string, error) {
	out := map[string][]string{}
	err := eachLine(r, func(_ int, line string) error {
		f := strings.Split(line, "\t")
		if len(f) != 3 {
			return fmt.Errorf("got %q, expected name, tag and time", line)
		}
		out[f[0]] = append(out[f[0]], f[1])
		return nil
	})
	return out, err
}
