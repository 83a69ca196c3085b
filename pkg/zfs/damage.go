package zfs

import (
	"bufio"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Damage is what a pool tells of its permanent errors (zpool status -v).
type Damage struct {
	// Things are what is damaged, in zpool's order, at most MaxDamage of them.
	Things []Damaged `json:"things"`
	More   int       `json:"more,omitempty"` // that are not in Things
	// Unlisted tells that there are errors whose list ZFS does not show: since a
	// damaged dataset's key is not loaded, or a damaged snapshot was destroyed
	// after the last scrub (seen with 2.3.9 and 2.4.4).
	Unlisted bool   `json:"unlisted,omitempty"`
	Reason   string `json:"reason,omitempty"` // why, in zpool's words; KeyNotLoaded
	// Elsewhere counts the listed things of other datasets than was asked for.
	Elsewhere int `json:"elsewhere,omitempty"`
	// OfPool counts those of no dataset, where not the whole pool was asked for: its own
	// metadata, which each dataset depends on, and what is left of what was destroyed.
	OfPool int  `json:"of_pool,omitempty"`
	Scan   Scan `json:"scan,omitzero"`
}

// KeyNotLoaded is why errors are not listed where one is of a dataset whose key is not
// loaded.
const KeyNotLoaded = "permission denied"

// DatasetGone is why errors are not listed where one is of a dataset that was destroyed,
// as while its damaged blocks are being freed. The next scrub drops it.
const DatasetGone = "no such pool or dataset"

// MaxDamage bounds a list of errors.
const MaxDamage = 10000

// Damaged is one line of the list.
type Damaged struct {
	// Dataset is "" where it is not known: metadata of the pool, or of what was
	// destroyed.
	Dataset  string `json:"dataset,omitempty"`
	Snapshot string `json:"snapshot,omitempty"` // without "@"
	Path     string `json:"path,omitempty"`     // below the dataset's root, with its "/"; "" where only the object is known
	Object   string `json:"object,omitempty"`   // "0x1", where the path is not known; of a volume
	Shown    string `json:"shown"`              // as zpool status prints it
}

// Scan is the state of a pool's scrub or resilver.
type Scan struct {
	Running bool    `json:"running,omitempty"`
	Paused  bool    `json:"paused,omitempty"`
	Errors  int     `json:"errors,omitempty"` // that the last found
	Percent float64 `json:"percent,omitempty"`
	Text    string  `json:"text,omitempty"` // the line behind "scan:"
}

// StatusArgs returns the arguments of zpool(8) that print what ParseDamage reads.
func StatusArgs(pool string) []string { return []string{"status", "-v", pool} }

// ScrubArgs returns the arguments of zpool(8) that begin a scrub.
func ScrubArgs(pool string) []string { return []string{"scrub", pool} }

// Mount is where a filesystem or snapshot is mounted.
type Mount struct{ At, Of string }

// ParseMounts reads what of a pool a file mountinfo(5) tells. zpool prints paths by
// that, whatever the property mountpoint says.
func ParseMounts(mountinfo, pool string) (all []Mount) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		place, of := strings.Fields(before), strings.Fields(after)
		if len(place) < 5 || len(of) < 2 || of[0] != "zfs" {
			continue
		}
		m := Mount{At: mangled.Replace(place[4]), Of: mangled.Replace(of[1])}
		if dataset, _, _ := strings.Cut(m.Of, "@"); PoolOf(dataset) == pool {
			all = append(all, m)
		}
	}
	return all
}

// mangled undoes how the kernel writes what would end a field.
var mangled = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

var unavailable = regexp.MustCompile(`(?m)^errors: List of errors unavailable: (.{1,200})$`)

// WhyUnlisted is what zpool status says on standard error of a list that it does not
// show.
func WhyUnlisted(stderr string) string {
	if m := unavailable.FindStringSubmatch(stderr); m != nil {
		return strings.TrimSpace(m[1])
	}
	return ""
}

var scanErrors = regexp.MustCompile(` with ([0-9]{1,9}) errors on `)

var percentDone = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)% done`)

// ParseDamage reads the output of zpool status -v. Files of mounted filesystems are
// printed by their paths, so mounts tell which is mounted where. The text is the
// same from 2.1 to 2.4; -p and -P change nothing in the list, and the JSON of 2.3
// and later has the very same words in it, so that it is not more exact.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zpool/zpool_main.c (print_error_log)
func ParseDamage(out string, mounts []Mount) Damage {
	d := Damage{Unlisted: true} // the reason is on standard error, in place of the line "errors:"
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, 1<<20)
	listing, scanning := false, false
	for lines.Scan() {
		line := lines.Text()
		line = strings.Map(func(c rune) rune { // names of files may hold anything
			if unicode.IsControl(c) && c != '\t' {
				return '?'
			}
			return c
		}, line)
		text := strings.TrimSpace(line)
		head, rest, _ := strings.Cut(text, ": ")
		switch {
		case listing && text == "":
		case listing && len(d.Things) >= MaxDamage:
			d.More++
		case listing:
			shown := strings.ReplaceAll(strings.TrimPrefix(line, "        "), "\t", "?")
			d.Things = append(d.Things, parseDamaged(shown, mounts))
		case head == "scan":
			scanning = true
			d.Scan = Scan{Running: strings.Contains(rest, "in progress since"), Paused: strings.Contains(rest, "paused since"), Text: rest}
			if m := scanErrors.FindStringSubmatch(rest); m != nil {
				d.Scan.Errors, _ = strconv.Atoi(m[1])
			}
		case head == "config:", text == "config:":
			scanning = false
		case head == "errors":
			d.Unlisted = !strings.HasPrefix(rest, "No known") && !strings.HasPrefix(rest, "Permanent errors")
			listing = !d.Unlisted && strings.HasPrefix(rest, "Permanent")
		case scanning:
			if m := percentDone.FindStringSubmatch(text); m != nil {
				d.Scan.Percent, _ = strconv.ParseFloat(m[1], 64)
			}
		}
	}
	return d
}

// parseDamaged takes a line of the list apart.
func parseDamaged(shown string, mounts []Mount) Damaged {
	d := Damaged{Shown: shown}
	if strings.HasPrefix(shown, "/") {
		var in Mount
		for _, m := range mounts {
			if shown != m.At && !strings.HasPrefix(shown, strings.TrimSuffix(m.At, "/")+"/") {
				continue
			}
			switch {
			case len(m.At) > len(in.At):
				in = m
			case m.At == in.At && m.Of != in.Of:
				in.Of = "" // one over the other: nobody can tell
			}
		}
		if in.Of != "" {
			d.Dataset, d.Snapshot, _ = strings.Cut(in.Of, "@")
			d.Path = "/" + strings.TrimPrefix(strings.TrimPrefix(shown, in.At), "/")
		}
		return d
	}
	i := strings.Index(shown, ":/")
	if o := strings.Index(shown, ":<0x"); i < 0 || o >= 0 && o < i {
		i = o
	}
	if i < 0 {
		return d
	}
	name, what := shown[:i], shown[i+1:]
	if strings.HasPrefix(what, "<") {
		d.Object = strings.Trim(what, "<>")
	} else {
		d.Path = what
	}
	dataset, snapshot, _ := strings.Cut(name, "@")
	if _, err := ParseDataset(dataset); err != nil { // <metadata>, or the number of what was destroyed
		return d
	}
	if snapshot != "" && CheckComponent(snapshot) != nil {
		return d
	}
	d.Dataset, d.Snapshot = dataset, snapshot
	return d
}

// Within leaves what is of a dataset and below it; what is of no known dataset is
// told where the dataset is the pool's own, else counted. That there are paths of no known dataset
// concerns each, but which they are is not for all to know.
func (d Damage) Within(dataset string) Damage {
	things := d.Things
	d.Things = nil
	unknown := false
	for _, t := range things {
		switch {
		case t.Dataset == dataset, strings.HasPrefix(t.Dataset, dataset+"/"), t.Dataset == "" && PoolOf(dataset) == dataset:
			d.Things = append(d.Things, t)
		case t.Dataset != "":
			d.Elsewhere++
		case !strings.HasPrefix(t.Shown, "/"):
			d.OfPool++
		case !unknown:
			unknown = true
			d.Things = append(d.Things, Damaged{Shown: "/…"})
		}
	}
	return d
}
