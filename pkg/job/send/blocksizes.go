package send

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
)

// parallelBlockSizes limits the datasets whose block sizes are compared concurrently.
const parallelBlockSizes = 2

// compareBlockSizes compares the block sizes of the datasets of a plan that start a new direction. It adds the
// results that are not known yet, by BlockPair.Key. A lost connection is an error.
func compareBlockSizes(ctx context.Context, e *ends.Ends, p *plan.Plan, known map[string]plan.BlockRisk) error {
	var pairs []*plan.BlockPair
	for _, d := range p.BlockPairs() {
		if _, compared := known[d.BlockPair().Key()]; !compared {
			pairs = append(pairs, d.BlockPair())
		}
	}
	risks, err := CompareBlockSizes(ctx, e.Source.Conn, e.Target.Conn, pairs, e.Activity)
	maps.Copy(known, risks)
	return err
}

// CompareBlockSizes compares the block sizes of pairs. The results are by BlockPair.Key. activity may be
// nil. A lost connection is an error.
func CompareBlockSizes(ctx context.Context, source, target *hosts.Conn, pairs []*plan.BlockPair, activity func(title string) (done func())) (map[string]plan.BlockRisk, error) {
	if activity != nil && len(pairs) > 0 {
		defer activity("comparing the block sizes of the files of " + pairs[0].Target + andMore(len(pairs)-1) + " with the source's")()
	}
	var mu sync.Mutex
	out := map[string]plan.BlockRisk{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelBlockSizes)
	for _, p := range pairs {
		g.Go(func() error {
			c := &blockComparison{source: source, target: target, pair: p}
			err := c.run(ctx)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, hosts.ErrLost):
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			c.risk.Refused = err
			out[p.Key()] = c.risk
			return nil
		})
	}
	return out, g.Wait()
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and of %d more", n)
}

// blockComparison compares the block sizes of one pair.
type blockComparison struct {
	source, target *hosts.Conn
	pair           *plan.BlockPair
	risk           plan.BlockRisk
}

// run compares all files. It stops when it found some that would lose data.
func (c *blockComparison) run(ctx context.Context) error {
	if c.pair.Source == "" {
		return fault.Refusef("", "the source has only a bookmark of %s", c.pair.Target)
	}
	for _, h := range []*hosts.Conn{c.source, c.target} {
		if err := h.Require(ctx, hosts.OpBlockSizes); err != nil {
			return err
		}
	}
	q := files.BlockQuery{Seed: rand.Uint64()}
	source, target, err := c.both(ctx, q)
	if err != nil {
		return err
	}
	if source.Files != target.Files {
		return fmt.Errorf("%s has %d files, and %s has %d", c.pair.Source, source.Files, c.pair.Target, target.Files)
	}
	different := source.DifferentBuckets(&target)
	most := bucketsPerWalk(source.Files)
	if len(different) > most*maxBlockWalks {
		return errors.New("too many files with different block sizes")
	}
	for len(different) > 0 && c.risk.Count == 0 {
		n := min(most, len(different))
		q.Buckets, different = different[:n], different[n:]
		if err := c.compareFiles(ctx, q); err != nil {
			return err
		}
	}
	c.risk.More = len(different) > 0
	return nil
}

// maxBlockWalks limits how often a comparison reads the names of all files again. It permits 8 million files that differ.
const maxBlockWalks = 64

// bucketsPerWalk returns for how many buckets an answer can list the files. Twice the mean leaves room for uneven
// buckets.
func bucketsPerWalk(all uint64) int {
	return max(1, files.MaxBlockFiles/(2*int(min(all, 1<<40)/files.BlockBuckets)+16))
}

// compareFiles compares the files of some buckets.
func (c *blockComparison) compareFiles(ctx context.Context, q files.BlockQuery) error {
	source, target, err := c.both(ctx, q)
	if err != nil {
		return err
	}
	if source.Cut || target.Cut {
		return errors.New("too many files with different block sizes")
	}
	on, at := source.Listed(), target.Listed()
	if len(on) != len(at) || len(on) == 0 {
		return fmt.Errorf("%s and %s have different files", c.pair.Source, c.pair.Target)
	}
	exposed := map[uint64]bool{}
	for inode, s := range on {
		t, both := at[inode]
		if !both {
			return fmt.Errorf("%s lacks inode %d of %s", c.pair.Target, inode, c.pair.Source)
		}
		if plan.LosesBlocks(plan.Stored{Size: s.Size, Block: s.Block, OneBlock: s.OneBlock}, plan.Stored{Size: t.Size, Block: t.Block, OneBlock: t.OneBlock}) {
			exposed[inode] = true
		}
	}
	if len(exposed) == 0 {
		return nil
	}
	return c.name(ctx, exposed, on, at)
}

// name records the exposed files that the first sent snapshot still has.
func (c *blockComparison) name(ctx context.Context, exposed map[uint64]bool, on, at map[uint64]files.BlockFile) error {
	inodes := slices.Sorted(maps.Keys(exposed))
	unknown := max(0, len(inodes)-files.MaxBlockInodes)
	q := files.BlockQuery{Snapshot: c.pair.Next, Inodes: inodes[:len(inodes)-unknown]}
	if q.Snapshot == "" {
		q.Snapshot = c.pair.Source
	}
	found, err := hosts.Call(ctx, c.source, hosts.OpBlockSizes, q)
	if err == nil && found.Failed > 0 {
		err = unreadable(q.Snapshot, &found)
	}
	if err != nil {
		return err
	}
	c.risk.Count += uint64(len(found.Paths) + unknown)
	for _, p := range found.Paths[:min(len(found.Paths), maxBlockPaths)] {
		c.risk.Files = append(c.risk.Files, fmt.Sprintf("%s (%s in %s, %s in %s)", strings.ToValidUTF8(p.Path[:min(len(p.Path), maxBlockPath)], ""),
			size.Text(on[p.Inode].Block), datasetOf(c.pair.Source), size.Text(at[p.Inode].Block), datasetOf(c.pair.Target)))
	}
	return nil
}

func datasetOf(snapshot string) string {
	dataset, _, _ := strings.Cut(snapshot, "@")
	return dataset
}

// Limits of the files that a comparison names, and of their paths in bytes.
const (
	maxBlockPaths = 20
	maxBlockPath  = 400
)

// both queries both sides concurrently.
func (c *blockComparison) both(ctx context.Context, q files.BlockQuery) (source, target files.BlockSizes, err error) {
	g, ctx := errgroup.WithContext(ctx)
	read := func(h *hosts.Conn, snapshot string, out *files.BlockSizes) {
		q := q
		q.Snapshot = snapshot
		g.Go(func() (err error) {
			if *out, err = hosts.Call(ctx, h, hosts.OpBlockSizes, q); err != nil {
				return c.explain(ctx, h, err)
			}
			if out.Failed > 0 {
				return unreadable(snapshot, out)
			}
			return nil
		})
	}
	read(c.source, c.pair.Source, &source)
	read(c.target, c.pair.Target, &target)
	return source, target, g.Wait()
}

// explain adds a hint if zxfer cannot mount a snapshot on the host.
func (c *blockComparison) explain(ctx context.Context, h *hosts.Conn, err error) error {
	if facts, failed := h.Facts(ctx); failed == nil && !facts.Root && fault.HintOf(err) == "" {
		return fault.Refusef("run the command as root on "+h.Label(), "%w", err)
	}
	return err
}

// unreadable returns the error for directories that a host could not read.
func unreadable(snapshot string, s *files.BlockSizes) error {
	first := ""
	if len(s.Problems) > 0 {
		first = ": " + s.Problems[0].Path + ": " + s.Problems[0].Why
	}
	return fmt.Errorf("%d files of %s cannot be read%s", s.Failed, snapshot, first)
}
