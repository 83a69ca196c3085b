package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// Limits of the report on a bad copy.
const (
	maxPaths = 20 // paths listed
	maxParts = 8  // parts searched for them
)

// files reads the clone's files and compares them with the source's snapshot.
func (c *oneCopy) files(ctx context.Context) error {
	q := files.Query{Sample: float64(cmp.Or(c.of.options.Sample, c.as.Sample, 1)), Seed: c.of.options.Seed, Seeded: true, Replica: true}
	var target, source files.Digest
	read := func() error {
		return c.withProgress(ctx, "logicalreferenced", q.Sample, func(progress func(transfer.Progress)) (_ uint64, err error) {
			target, source, err = c.digests(ctx, q, progress)
			return target.Bytes, err
		})
	}
	// Both sides read the same sample. If the source was read, its count decides whether the
	// sample was empty, since a copy may report a wrong count.
	none := func() bool { return target.Read == 0 || c.rec.Compared && source.Read == 0 }
	err := read()
	if err == nil && none() && q.Sample < 1 { // with few files the sample may be empty, which proves nothing
		q.Sample = 1
		err = read()
	}
	if err == nil && errors.Is(c.sourceErr, &zfs.Error{Kind: zfs.NotSupported}) {
		err = c.sourceErr // the caller compares streams instead
	}
	if err != nil {
		return err
	}
	c.rec.Read, c.rec.Sample, c.rec.Files, c.rec.Bytes = "files", q.Sample, target.Read, target.Bytes
	for _, p := range target.Problems[:min(len(target.Problems), maxPaths)] {
		c.rec.Differ = append(c.rec.Differ, p.Path+" "+p.Why)
	}
	if failed := max(target.Failed, uint64(len(target.Problems))); failed > 0 {
		return c.badCopy(c.healHint(ctx), "%d of its files cannot be read", failed)
	}
	if !c.rec.Compared {
		return nil
	}
	if source.Failed > 0 {
		c.rec.Compared, c.rec.Note = false, fmt.Sprintf("not compared: %d files of the source cannot be read", source.Failed)
		return nil
	}
	if parts := target.DifferentParts(source); len(parts) > 0 {
		return c.differ(ctx, q, parts)
	}
	if target.Read != source.Read || target.Bytes != source.Bytes || target.Files != source.Files {
		return c.badCopy(c.differenceHint(),
			"%s read %d of %d files with %d bytes, but the source has %d of %d with %d", c.t.Host.Label(),
			target.Read, target.Files, target.Bytes, source.Read, source.Files, source.Bytes)
	}
	if target.BlockSizes != source.BlockSizes {
		c.of.note("%s: %s", c.rec.Target, zfs.OtherBlockSizes)
	}
	return nil
}

// differenceHint returns the hint for data that is readable on both sides, but differs. A scrub does not
// find it, and only people can know which side is right.
func (c *oneCopy) differenceHint() string {
	return "compare it on both sides before you overwrite one: a drill cannot know which one is right\n" +
		"to compare the same files again: " + c.of.session.Env.Command("drill --seed "+fmt.Sprint(c.of.options.Seed)+" "+c.of.session.Job.Name)
}

// digests queries both sides concurrently.
func (c *oneCopy) digests(ctx context.Context, q files.Query, progress func(transfer.Progress)) (target, source files.Digest, err error) {
	return readBoth(ctx, c, c.clone, c.as.KeyFile, progress,
		func(ctx context.Context, s *session.Side, name, keyFile string, progress func(transfer.Progress)) (files.Digest, error) {
			q := q
			q.Snapshot, q.KeyFile = name, keyFile
			return hosts.Watch(ctx, s, hosts.OpReadFiles, q, progress)
		})
}

// differ finds the paths of differing files. Its error reports a difference even if no path was
// found.
func (c *oneCopy) differ(ctx context.Context, q files.Query, parts []int) error {
	found := 0
	for _, part := range parts[:min(len(parts), maxParts)] {
		q.Within = part
		target, source, err := c.digests(ctx, q, nil)
		if err != nil || !c.rec.Compared {
			break
		}
		for _, d := range files.Compare(source.Listed, target.Listed) {
			if found++; found <= maxPaths {
				c.rec.Differ = append(c.rec.Differ, d.Path+" "+d.What)
			}
		}
	}
	c.rec.Compared, c.rec.Note = true, ""
	which := ""
	if len(c.rec.Differ) > 0 {
		which = ": " + c.rec.Differ[0]
	}
	if found > 1 {
		which += fmt.Sprintf(", and about %d more", found-1)
	}
	return c.badCopy(c.differenceHint(), "its files differ from %s%s", c.sourceSnapshot, which)
}
