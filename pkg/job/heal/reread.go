package heal

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
	"zxfer/pkg/zfs"
)

// The values of HealedObject.Read without failure and for unread files.
const (
	readsAgain = "is readable again"
	tooMuch    = "was not read: only the scrub checks it"
)

// Limits for reading a dataset before the scrub.
const (
	maxReadFiles = 100 // files
	maxReadBytes = 4 << 30
)

// errTooLarge means that a file exceeds the remaining limit.
var errTooLarge = errors.New("it is larger than the limit")

// reread reads each damaged file of a dataset once. It reports whether all that were read
// succeeded, and whether a file is damaged. Success does not prove health, because the data may be
// cached; only the scrub does.
func (h *healJob) reread(ctx context.Context, d *healing) (readable, anyDamaged bool) {
	defer h.rep.Activity("reading the damaged files of " + d.report.Dataset)()
	byOutcome := map[string][]string{}
	var refused error // by a restricted key, which refuses the other files too
	left := uint64(maxReadBytes)
	for n, t := range h.newestDamaged(d) {
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
		case n >= maxReadFiles:
			err = errTooLarge
		default:
			damaged, err = h.readFile(ctx, of, t.Path, &left)
		}
		if fault.ClassOf(err) == fault.Refused {
			refused = err
		}
		switch {
		case err == nil:
			t.Read = readsAgain
		case errors.Is(err, errTooLarge):
			t.Read = tooMuch
		case damaged:
			t.Read, anyDamaged = "is unreadable: "+err.Error(), true
		default:
			t.Read = "was not read: " + err.Error()
		}
		byOutcome[t.Read] = append(byOutcome[t.Read], t.Shown)
	}
	for _, outcome := range slices.Sorted(maps.Keys(byOutcome)) {
		h.rep.Log(outcome + ": " + finding.JoinFirst(byOutcome[outcome], 5))
	}
	delete(byOutcome, tooMuch)
	return len(byOutcome[readsAgain]) > 0 && len(byOutcome) == 1, anyDamaged
}

// newestDamaged returns the damaged files of a dataset, each in its most recent damaged version.
func (h *healJob) newestDamaged(d *healing) (all []*Object) {
	age := func(t *Object) int {
		if t.Snapshot == "" {
			return len(d.pair.shared)
		}
		return slices.IndexFunc(d.pair.shared, func(s commonSnapshot) bool { return s.bad == t.Snapshot })
	}
	at := map[string]int{}
	for _, t := range h.report.Objects {
		if t.Dataset != d.report.Dataset || t.Path == "" {
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

// chooseBase looks for the most recent common snapshot, except the last, in which the damaged
// files are intact. An incremental stream from it contains all damaged blocks. The error list
// does not show this: right after a scrub it omits snapshots that share blocks with the live data
// (2.3.9). The choice may be wrong, because files may have been renamed, but the reread detects
// that. It reads at most a tenth of the stream size or 16 MiB, also in a dry run. If that is not enough,
// or the damage has no paths, the error log decides.
func (h *healJob) chooseBase(ctx context.Context, d *healing) error {
	defer h.rep.Activity("searching the snapshots of " + d.report.Dataset + " for the damaged files")()
	var paths []string
	var listed []string // damaged snapshots
	var cost uint64
	for _, t := range h.report.Objects {
		switch {
		case t.Dataset != d.report.Dataset || slices.Contains(paths, t.Path) && t.Snapshot == "":
		case t.Path == "" || h.report.More > 0 || len(paths) == maxReadFiles:
			return h.useListedBase(ctx, d)
		case t.Snapshot != "":
			listed = append(listed, t.Snapshot)
		default:
			of, err := h.digest(ctx, files.Query{Snapshot: d.report.Dataset, Path: t.Path, Sample: math.SmallestNonzeroFloat64})
			if err != nil || of.Failed > 0 || of.Files != 1 {
				return h.useListedBase(ctx, d)
			}
			cost += of.Size
			paths = append(paths, t.Path)
		}
	}
	older := d.pair.shared[:len(d.pair.shared)-1]
	left := min(max(d.report.Bytes/10, 16<<20), maxReadBytes)
	if len(paths) == 0 || cost*uint64(bits.Len(uint(len(older)))) > left {
		return h.useListedBase(ctx, d)
	}
	n := sort.Search(len(older), func(i int) bool {
		in := older[i].bad
		return slices.Contains(listed, in) || slices.ContainsFunc(paths, func(p string) bool {
			_, err := h.readFile(ctx, d.report.Dataset+"@"+in, p, &left)
			return err != nil && !strings.Contains(err.Error(), syscall.ENOENT.Error())
		})
	})
	return h.useBase(ctx, d, n-1)
}

// useListedBase chooses the incremental source by the error log: the most recent common snapshot before
// all damaged ones. If the log omits a snapshot, the stream lacks blocks, and the full one follows.
func (h *healJob) useListedBase(ctx context.Context, d *healing) error {
	damage := h.found.BlocksOf(d.report.Dataset)
	if len(damage.Data) == 0 {
		return nil
	}
	older := d.pair.shared[:len(d.pair.shared)-1]
	n := slices.IndexFunc(older, func(s commonSnapshot) bool { return slices.Contains(damage.Snapshots, s.bad) })
	if n < 0 {
		n = len(older)
	}
	return h.useBase(ctx, d, n-1)
}

// useBase makes common snapshot n the incremental source if that halves the stream, none if n is -1.
func (h *healJob) useBase(ctx context.Context, d *healing, n int) error {
	if n < 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	p, base := d.pair, d.pair.shared[n]
	sizes, err := hosts.Estimate(ctx, hosts.By(h.at.Get(p.good.Host, &p.Settings).Retry), []zfs.SendSpec{p.stream(base.good, d.common)})
	if err == nil && len(sizes) == 1 && sizes[0] < d.report.Bytes/2 {
		d.report.FullBytes, d.report.Bytes, d.report.Since, d.base = d.report.Bytes, sizes[0], base.good, base.guid
	}
	return ctx.Err()
}

// readFile reads a file of at most *left bytes and subtracts its size. damaged reports whether
// the error comes from its blocks. For a directory it reads only the names in its tree.
func (h *healJob) readFile(ctx context.Context, of, path string, left *uint64) (damaged bool, err error) {
	d, err := h.digest(ctx, files.Query{Snapshot: of, Path: path, Sample: math.SmallestNonzeroFloat64})
	if err == nil && d.Files == 1 && d.Failed == 0 {
		if d.Size > *left {
			return false, errTooLarge
		}
		*left -= d.Size
		d, err = h.digest(ctx, files.Query{Snapshot: of, Path: path, Sample: 1})
	}
	if len(d.Problems) > 0 {
		err = errors.New(d.Problems[0].Why)
	}
	return err != nil && (d.Failed > 0 || strings.Contains(err.Error(), syscall.EIO.Error())), err
}

func (h *healJob) digest(ctx context.Context, q files.Query) (files.Digest, error) {
	return hosts.Call(ctx, hosts.By(h.host.Retry), hosts.OpReadFiles, q)
}
