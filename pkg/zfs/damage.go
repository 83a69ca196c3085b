package zfs

import (
	"bufio"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Damage lists the permanent errors that a pool reports (zpool status -v).
type Damage struct {
	// Objects are the damaged files and objects in zpool's order, at most MaxDamage.
	Objects []DamagedObject `json:"things"`
	More    int             `json:"more,omitempty"` // number of errors that Objects leaves out
	// Unlisted reports that the pool has errors that ZFS does not list, because the key of a
	// damaged dataset is not loaded, or a damaged snapshot was destroyed after the last scrub
	// (seen with 2.3.9 and 2.4.4).
	Unlisted bool   `json:"unlisted,omitempty"`
	Reason   string `json:"reason,omitempty"` // why, in zpool's words; KeyNotLoaded
	// Elsewhere counts the listed errors of datasets outside of the requested one.
	Elsewhere int `json:"elsewhere,omitempty"`
	// PoolErrors counts the errors of no dataset, if the request was not for the whole pool:
	// errors in pool metadata, which every dataset needs, and in remains of destroyed
	// datasets.
	PoolErrors int  `json:"of_pool,omitempty"`
	Scan       Scan `json:"scan,omitzero"`
	// Blocks lists the damaged blocks by dataset, with at most MaxBlockRanges ranges. NoBlocks is
	// the reason why they are unknown, although Objects lists errors.
	Blocks   []DamagedBlocks `json:"blocks,omitempty"`
	NoBlocks string          `json:"no_blocks,omitempty"`
}

// KeyNotLoaded is the Reason if the key of a damaged dataset is not loaded.
const KeyNotLoaded = "permission denied"

// DatasetDestroyed is the Reason if a damaged dataset was destroyed and its blocks are still being
// freed. The next scrub removes the error.
const DatasetDestroyed = "no such pool or dataset"

// MaxDamage is the largest number of listed errors.
const MaxDamage = 10000

// DamagedObject is one listed error.
type DamagedObject struct {
	// Dataset is "" if it is unknown: for pool metadata and destroyed datasets.
	Dataset  string `json:"dataset,omitempty"`
	Snapshot string `json:"snapshot,omitempty"` // without "@"
	Path     string `json:"path,omitempty"`     // from the dataset's root, starting with "/"; "" if only the object is known
	Object   string `json:"object,omitempty"`   // such as "0x1", if the path is unknown or the dataset is a volume
	Shown    string `json:"shown"`              // as zpool status prints it
}

// Scan is the state of a pool's scrub or resilver.
type Scan struct {
	Running bool    `json:"running,omitempty"`
	Paused  bool    `json:"paused,omitempty"`
	Errors  int     `json:"errors,omitempty"` // found by the last scan
	Percent float64 `json:"percent,omitempty"`
	Text    string  `json:"text,omitempty"` // the line after "scan:"
}

// StatusArgs returns the arguments of zpool(8) that print the errors for ParseDamage.
func StatusArgs(pool string) []string { return []string{"status", "-v", pool} }

// ScrubArgs returns the arguments of zpool(8) that start a scrub.
func ScrubArgs(pool string) []string { return []string{"scrub", pool} }

var unavailable = regexp.MustCompile(`(?m)^errors: List of errors unavailable: (.{1,200})$`)

// UnlistedReason returns the reason from stderr of zpool status why it lists no errors, or "".
func UnlistedReason(stderr string) string {
	if m := unavailable.FindStringSubmatch(stderr); m != nil {
		return strings.TrimSpace(m[1])
	}
	return ""
}

var scanErrors = regexp.MustCompile(` with ([0-9]{1,9}) errors on `)

var percentDone = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)% done`)

// ParseDamage parses the output of zpool status -v. Paths of mounted filesystems are resolved
// with mounts. The text is the same in 2.1 to 2.4. The options -p and -P, and the JSON of 2.3
// and later, give no more exact list.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zpool/zpool_main.c (print_error_log)
func ParseDamage(out string, mounts []Mount) Damage {
	d := Damage{Unlisted: true} // the reason is on standard error, in place of the line "errors:"
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, 1<<20)
	listing, scanning := false, false
	for lines.Scan() {
		line := lines.Text()
		line = strings.Map(func(c rune) rune { // file names may contain any character
			if unicode.IsControl(c) && c != '\t' {
				return '?'
			}
			return c
		}, line)
		text := strings.TrimSpace(line)
		head, rest, _ := strings.Cut(text, ": ")
		switch {
		case listing && text == "":
		case listing && len(d.Objects) >= MaxDamage:
			d.More++
		case listing:
			shown := strings.ReplaceAll(strings.TrimPrefix(line, "        "), "\t", "?")
			d.Objects = append(d.Objects, parseDamaged(shown, mounts))
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

// ListedBlocks returns the number of blocks that Blocks lists.
func (d *Damage) ListedBlocks() (n uint64) {
	for _, b := range d.Blocks {
		n += min(b.Data.Total()+b.Metadata, math.MaxUint32) // another host's numbers must not overflow
	}
	return n
}

// BlocksOf returns the damaged blocks of a dataset.
func (d *Damage) BlocksOf(dataset string) DamagedBlocks {
	for _, b := range d.Blocks {
		if b.Dataset == dataset {
			return b
		}
	}
	return DamagedBlocks{Dataset: dataset}
}

// parseDamaged parses one line of the list.
func parseDamaged(shown string, mounts []Mount) DamagedObject {
	d := DamagedObject{Shown: shown}
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
				in.Of = "" // overmounted: the dataset is unknown
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
	if _, err := ParseDataset(dataset); err != nil { // <metadata>, or the number of a destroyed dataset
		return d
	}
	if snapshot != "" && CheckComponent(snapshot) != nil {
		return d
	}
	d.Dataset, d.Snapshot = dataset, snapshot
	return d
}

// Within returns the errors of a dataset and its descendants. Errors of no dataset are listed
// if dataset is the pool's root. Otherwise they are counted, and paths of unknown datasets
// become a single entry that hides their names.
func (d Damage) Within(dataset string) Damage {
	things, blocks := d.Objects, d.Blocks
	d.Objects, d.Blocks = nil, nil
	unknown := false
	for _, b := range blocks {
		if b.Dataset == dataset || strings.HasPrefix(b.Dataset, dataset+"/") {
			d.Blocks = append(d.Blocks, b)
		}
	}
	for _, t := range things {
		switch {
		case t.Dataset == dataset, strings.HasPrefix(t.Dataset, dataset+"/"), t.Dataset == "" && PoolOf(dataset) == dataset:
			d.Objects = append(d.Objects, t)
		case t.Dataset != "":
			d.Elsewhere++
		case !strings.HasPrefix(t.Shown, "/"):
			d.PoolErrors++
		case !unknown:
			unknown = true
			d.Objects = append(d.Objects, DamagedObject{Shown: "/…"})
		}
	}
	return d
}
