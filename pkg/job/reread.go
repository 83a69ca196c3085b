package job

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strings"
	"syscall"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// What a thing's Read says where nothing failed, and where the scrub tells.
const (
	readsAgain = "reads again"
	tooMuch    = "was not read: it is left to the scrub"
)

// Bounds of what is read of a dataset before the scrub reads all.
const (
	maxRead      = 100 // files
	maxReadBytes = 4 << 30
)

// errMuch is why a file is not read.
var errMuch = errors.New("it has more than is to be read")

// reread reads what was damaged in a dataset, each file once, and tells that nothing
// shows that more is needed. What does not read is damaged still; what does may be in
// memory, so that the scrub proves it.
func (h *healJob) reread(ctx context.Context, d *HealedDataset) bool {
	defer h.rep.Activity("reading the damaged files of " + d.Dataset)()
	said := map[string][]string{}
	var refused error // to a restricted key: so would be all others
	left := uint64(maxReadBytes)
	for n, t := range h.newest(d) {
		if ctx.Err() != nil {
			break
		}
		of := t.Dataset
		if t.Snapshot != "" {
			of += "@" + t.Snapshot
		}
		damaged, err := false, refused
		switch {
		case err != nil:
		case n >= maxRead:
			err = errMuch
		default:
			damaged, err = h.read(ctx, of, t.Path, &left)
		}
		if fault.ClassOf(err) == fault.Refused {
			refused = err
		}
		switch {
		case err == nil:
			t.Read = readsAgain
		case errors.Is(err, errMuch):
			t.Read = tooMuch
		case damaged:
			t.Read = "does not read: " + err.Error()
		default:
			t.Read = "was not read: " + err.Error()
		}
		said[t.Read] = append(said[t.Read], t.Shown)
	}
	for _, what := range slices.Sorted(maps.Keys(said)) {
		h.rep.Log(what + ": " + finding.Some(said[what], 5))
	}
	delete(said, tooMuch)
	return len(said[readsAgain]) > 0 && len(said) == 1
}

// newest are the damaged files of a dataset, each in the newest state that is listed.
func (h *healJob) newest(d *HealedDataset) (all []*HealedObject) {
	age := func(t *HealedObject) int {
		if t.Snapshot == "" {
			return len(d.pair.shared)
		}
		return slices.IndexFunc(d.pair.shared, func(s commonSnapshot) bool { return s.bad == t.Snapshot })
	}
	at := map[string]int{}
	for _, t := range h.report.Things {
		if t.Dataset != d.Dataset || t.Path == "" {
			continue
		}
		t.Read = "" // of an earlier round
		if i, ok := at[t.Path]; !ok {
			at[t.Path] = len(all)
			all = append(all, t)
		} else if age(t) > age(all[i]) {
			all[i] = t
		}
	}
	return all
}

// read reads a file of no more than what is left to be read, and tells whether an error
// is one of its blocks. Of a folder only the names are read, here and below.
func (h *healJob) read(ctx context.Context, of, path string, left *uint64) (damaged bool, err error) {
	d, err := h.digest(ctx, files.Query{Snapshot: of, Path: path, Sample: math.SmallestNonzeroFloat64})
	if err == nil && d.Files == 1 && d.Failed == 0 {
		if d.Size > *left {
			return false, errMuch
		}
		*left -= d.Size
		d, err = h.digest(ctx, files.Query{Snapshot: of, Path: path, Sample: 1})
	}
	if len(d.Problems) > 0 {
		err = errors.New(d.Problems[0].Why)
	}
	return err != nil && (d.Failed > 0 || strings.Contains(err.Error(), syscall.EIO.Error())), err
}

func (h *healJob) digest(ctx context.Context, q files.Query) (d files.Digest, err error) {
	err = h.host.Retry(ctx, hosts.WithRole(func(s hosts.FileReader) error {
		d, err = s.ReadFiles(ctx, q, nil)
		return err
	}))
	return d, err
}

// narrow finds the snapshot after which all came that is damaged in a dataset, so that
// an increment has it: the newest, but for the last, in which the damaged files are
// whole. The list of errors does not tell: right after a scrub it leaves out snapshots
// that share the blocks of a file in the newest state (2.3.9). That it is a guess, as a file may have
// had another name, shows when they are read again. It reads, also for a plan, no more
// than a small part of what it may save.
func (h *healJob) narrow(ctx context.Context, d *HealedDataset) error {
	defer h.rep.Activity("looking in the snapshots of " + d.Dataset + " for the damaged files")()
	var paths []string
	var listed []string // damaged snapshots
	var cost uint64
	for _, t := range h.report.Things {
		switch {
		case t.Dataset != d.Dataset || slices.Contains(paths, t.Path) && t.Snapshot == "":
		case t.Path == "" || h.report.More > 0 || len(paths) == maxRead:
			return nil
		case t.Snapshot != "":
			listed = append(listed, t.Snapshot)
		default:
			of, err := h.digest(ctx, files.Query{Snapshot: d.Dataset, Path: t.Path, Sample: math.SmallestNonzeroFloat64})
			if err != nil || of.Failed > 0 || of.Files != 1 {
				return ctx.Err()
			}
			cost += of.Size
			paths = append(paths, t.Path)
		}
	}
	older := d.pair.shared[:len(d.pair.shared)-1]
	left := min(max(d.Bytes/10, 16<<20), maxReadBytes)
	if len(paths) == 0 || cost*uint64(bits.Len(uint(len(older)))) > left {
		return nil
	}
	n := sort.Search(len(older), func(i int) bool {
		in := older[i].bad
		return slices.Contains(listed, in) || slices.ContainsFunc(paths, func(p string) bool {
			_, err := h.read(ctx, d.Dataset+"@"+in, p, &left)
			return err != nil && !strings.Contains(err.Error(), syscall.ENOENT.Error())
		})
	})
	if n == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	p := d.pair
	sizes, err := hosts.Call(ctx, h.at.Get(p.good.Host, &p.Settings).Retry, hosts.Lister.Estimate, []zfs.SendSpec{p.stream(older[n-1].good, d.common)})
	if err == nil && len(sizes) == 1 && sizes[0] < d.Bytes/2 {
		d.Whole, d.Bytes, d.Since, d.base = d.Bytes, sizes[0], older[n-1].good, older[n-1].guid
	}
	return ctx.Err()
}

// newer heals what came after the block that the good one cannot read: by the longest
// increment without it.
func (h *healJob) newer(ctx context.Context, d *HealedDataset, of *plan.Dataset) {
	after := slices.IndexFunc(d.pair.shared, func(s commonSnapshot) bool { return s.good == d.Since }) + 1
	rest := d.pair.shared[after:]
	sort.Search(len(rest), func(i int) bool {
		part := *d
		part.Since, part.base, part.Bytes = rest[i].good, rest[i].guid, 0
		return ctx.Err() != nil || h.correct(ctx, &part, of) == nil
	})
}
