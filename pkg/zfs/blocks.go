package zfs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// BlockRange is a range of data blocks of an object. Block n of an object with blocks of s bytes
// starts at offset n*s.
type BlockRange struct {
	Object, First, Count uint64
}

// Blocks are data blocks of a dataset, as ranges in ascending order that do not overlap. Their text
// form is "OBJECT:FIRST+COUNT,…" in hexadecimal.
type Blocks []BlockRange

// MaxBlockRanges is the largest number of ranges of a Blocks.
const MaxBlockRanges = 1 << 16

// maxBlockNumber is a limit of block numbers: no object has more than 2^64 bytes.
const maxBlockNumber = 1 << 55

// Check returns an error if the ranges are out of order or outside the limits of the format.
func (b Blocks) Check() error {
	if len(b) > MaxBlockRanges {
		return fmt.Errorf("%d ranges of blocks are more than %d", len(b), MaxBlockRanges)
	}
	for i, r := range b {
		switch {
		case r.Object == 0 || r.Object >= maxObject || r.Count == 0 || r.First >= maxBlockNumber || r.Count > maxBlockNumber-r.First:
			return fmt.Errorf("object %d has no %d blocks from %d on", r.Object, r.Count, r.First)
		case i > 0 && (r.Object < b[i-1].Object || r.Object == b[i-1].Object && r.First < b[i-1].First+b[i-1].Count):
			return fmt.Errorf("blocks of object %d are out of order", r.Object)
		}
	}
	return nil
}

// Total returns the number of blocks.
func (b Blocks) Total() (n uint64) {
	for _, r := range b {
		if r.Count > math.MaxUint64-n {
			return math.MaxUint64
		}
		n += r.Count
	}
	return n
}

// Has reports whether b has a block of an object.
func (b Blocks) Has(object, block uint64) bool { return b.hasRange(BlockRange{object, block, 1}) }

// hasRange reports whether a range of b contains r.
func (b Blocks) hasRange(r BlockRange) bool {
	i := sort.Search(len(b), func(i int) bool {
		return b[i].Object > r.Object || b[i].Object == r.Object && b[i].First > r.First
	})
	return i > 0 && b[i-1].Object == r.Object && r.First-b[i-1].First < b[i-1].Count && r.Count <= b[i-1].Count-(r.First-b[i-1].First)
}

func (b Blocks) hasObject(object uint64) bool {
	_, ok := slices.BinarySearchFunc(b, object, func(r BlockRange, object uint64) int { return cmp.Compare(r.Object, object) })
	return ok
}

// Contains reports whether a range of b contains each range of other.
func (b Blocks) Contains(other Blocks) bool {
	return !slices.ContainsFunc(other, func(r BlockRange) bool { return !b.hasRange(r) })
}

// MarshalText returns the text form.
func (b Blocks) MarshalText() ([]byte, error) {
	var text []byte
	for i, r := range b {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, r.Object, 16)
		text = strconv.AppendUint(append(text, ':'), r.First, 16)
		text = strconv.AppendUint(append(text, '+'), r.Count, 16)
	}
	return text, nil
}

// UnmarshalText parses the text form. It refuses ranges that Check refuses.
func (b *Blocks) UnmarshalText(text []byte) error {
	*b = nil
	for part := range strings.SplitSeq(string(text), ",") {
		if len(*b) == MaxBlockRanges {
			return fmt.Errorf("got more than %d ranges of blocks", MaxBlockRanges)
		}
		object, rest, _ := strings.Cut(part, ":")
		first, count, _ := strings.Cut(rest, "+")
		var r BlockRange
		for _, n := range []struct {
			into *uint64
			text string
		}{{&r.Object, object}, {&r.First, first}, {&r.Count, count}} {
			var err error
			if *n.into, err = strconv.ParseUint(n.text, 16, 64); err != nil {
				return errors.New("got a malformed range of blocks")
			}
		}
		*b = append(*b, r)
	}
	return b.Check()
}

// ErrorEntry is an entry of a pool's error log (zbookmark_phys_t): a block of an object of a dataset or
// snapshot.
type ErrorEntry struct {
	Objset, Object uint64
	Level          int64 // 0: data; above: indirect blocks; below: other metadata
	Block          uint64
}

// isData reports whether a send stream may contain the block. The blocks of object 0 hold the other
// objects' attributes. Spill and bonus blocks have numbers above maxBlockNumber.
func (e ErrorEntry) isData() bool {
	return e.Level == 0 && e.Object > 0 && e.Object < maxObject && e.Block < maxBlockNumber
}

// DamagedBlocks lists the damaged blocks of a dataset.
type DamagedBlocks struct {
	Dataset string `json:"dataset"`
	// Data are the damaged blocks that a send stream may contain, also of snapshots: a pool
	// without the feature head_errlog names only a block's oldest snapshot.
	Data Blocks `json:"data,omitempty"`
	// Snapshots are the snapshots with damaged data, in order of names.
	Snapshots []string `json:"snapshots,omitempty"`
	// Metadata counts damaged metadata, which no stream contains. LiveMetadata reports that some of
	// it belongs to the live data. OpenZFS 2.2 and later do not list damaged attributes of objects.
	Metadata     uint64 `json:"metadata,omitempty"`
	LiveMetadata bool   `json:"live_metadata,omitempty"`
}

// CollectBlocks groups an error log by dataset, in order of names. nameOf returns the name of a
// dataset or snapshot, or "" if it was destroyed.
func CollectBlocks(log []ErrorEntry, nameOf func(objset uint64) string) ([]DamagedBlocks, error) {
	slices.SortFunc(log, func(a, b ErrorEntry) int {
		return cmp.Or(cmp.Compare(a.Objset, b.Objset), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Level, b.Level), cmp.Compare(a.Block, b.Block))
	})
	data, snapshots := map[string][]ErrorEntry{}, map[string]map[string]bool{}
	metadata, live := map[string]map[ErrorEntry]bool{}, map[string]bool{}
	name := ""
	for i, e := range log {
		if i == 0 || e.Objset != log[i-1].Objset {
			name = nameOf(e.Objset)
		}
		dataset, snapshot, _ := strings.Cut(name, "@")
		if _, err := ParseDataset(dataset); err != nil {
			continue
		}
		if e.isData() {
			data[dataset] = append(data[dataset], e)
			if snapshots[dataset] == nil {
				snapshots[dataset] = map[string]bool{}
			}
			if snapshot != "" {
				snapshots[dataset][snapshot] = true
			}
			continue
		}
		if metadata[dataset] == nil {
			metadata[dataset] = map[ErrorEntry]bool{}
		}
		e.Objset = 0 // snapshots may share it
		metadata[dataset][e] = true
		live[dataset] = live[dataset] || snapshot == ""
	}
	var all []DamagedBlocks
	ranges := 0
	for dataset, entries := range data {
		d := DamagedBlocks{Dataset: dataset, Data: merge(entries), Metadata: uint64(len(metadata[dataset])), LiveMetadata: live[dataset],
			Snapshots: slices.Sorted(maps.Keys(snapshots[dataset]))}
		delete(metadata, dataset)
		if ranges += len(d.Data); ranges > MaxBlockRanges {
			return nil, fmt.Errorf("the error log has more than %d ranges of blocks", MaxBlockRanges)
		}
		if len(d.Snapshots) > MaxBlockRanges {
			d.Snapshots = nil // it only narrows the stream
		}
		all = append(all, d)
	}
	for dataset, entries := range metadata {
		all = append(all, DamagedBlocks{Dataset: dataset, Metadata: uint64(len(entries)), LiveMetadata: live[dataset]})
	}
	slices.SortFunc(all, func(a, b DamagedBlocks) int { return cmp.Compare(a.Dataset, b.Dataset) })
	return all, nil
}

// merge returns the blocks of entries as ranges.
func merge(entries []ErrorEntry) (b Blocks) {
	slices.SortFunc(entries, func(x, y ErrorEntry) int {
		return cmp.Or(cmp.Compare(x.Object, y.Object), cmp.Compare(x.Block, y.Block))
	})
	for _, e := range entries {
		if n := len(b) - 1; n >= 0 && b[n].Object == e.Object && e.Block <= b[n].First+b[n].Count {
			b[n].Count = max(b[n].Count, e.Block-b[n].First+1)
			continue
		}
		b = append(b, BlockRange{e.Object, e.Block, 1})
	}
	return b
}
