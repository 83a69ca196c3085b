package device

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Request holds the user's options and consent.
type Request struct {
	Allow      Allow `json:"allow"`
	Sparse     bool  `json:"sparse,omitempty"`      // a new image file keeps its holes
	SkipErrors bool  `json:"skip_errors,omitempty"` // replace unreadable ranges with zeros
	// LVMSnapshot is the size of a temporary snapshot, which is copied instead of
	// the source. "" means no snapshot.
	LVMSnapshot string `json:"lvm_snapshot,omitempty"`
	NoResume    bool   `json:"no_resume,omitempty"` // ignore an existing journal

	Options Options `json:"options"` // if Block is 0, Task.SetDefaults sets it
}

// Task is one copy. Both ends get the same task, except for Read and Write.
type Task struct {
	Source Facts `json:"source"` // as planned: the opened devices must match
	Target Facts `json:"target"`
	Read   bool  `json:"read,omitempty"`  // this end reads the source
	Write  bool  `json:"write,omitempty"` // this end writes the target
	Request
}

// State describes an earlier copy, as found on the target's host.
type State struct {
	// Started reports that the target holds an interrupted copy of the same source.
	// Overwriting it needs no consent.
	Started bool `json:"begun,omitempty"`
	// Stored is the number of bytes in the journal.
	Stored int64 `json:"stored"`
	// Unusable is the reason why a journal cannot be used, or "".
	Unusable string `json:"unusable,omitempty"`
	// Digest is the hash of the journal if a different hash is the only reason why
	// it is unusable, otherwise "".
	Digest string `json:"digest,omitempty"`
}

// Default blocks are at least defaultBlock. They grow so that a device has at most
// defaultBlocks blocks, because each block costs both ends 32 bytes.
const (
	defaultBlock  = 1 << 20
	rotatingBlock = 4 << 20 // for rotating disks, which seek between blocks
	defaultBlocks = 1 << 20
)

// SetDefaults sets options that the user left open. It uses no measurements, because a
// resumed copy must make the same choice.
func (t *Task) SetDefaults() error {
	// Copy holes if the source occupies clearly less than its size.
	t.Sparse = t.Sparse || t.Source.Kind == KindFile && t.Source.Allocated < t.Source.Size-t.Source.Size/10
	t.Allow.Sparse = t.Sparse
	t.Options.VerifyLater = t.Target.Rotational
	if t.Options.Block == 0 {
		b := defaultBlock
		if t.Source.Rotational || t.Target.Rotational {
			b = rotatingBlock
		}
		for b < tcp.MaxRaw && t.Source.Size/int64(b) > defaultBlocks {
			b *= 2
		}
		t.Options.Block = b
	}
	return t.Options.CheckSize(t.Source.Size)
}

// StateOf reads the journal of an earlier copy, and checks whether the target still
// holds the stored blocks.
func StateOf(t Task) (s State, err error) {
	if t, err = t.filled(); err != nil {
		return s, err
	}
	j, reason, err := OpenJournal(t.Source, t.Target, t.Options.BlockHash(), journalRead)
	if err != nil {
		return s, fmt.Errorf("journal of %s: %w", t.Target.Path, err)
	}
	if j == nil {
		return s, nil
	}
	defer j.Close()
	if reason != "" {
		return State{Unusable: reason}, nil
	}
	usable, wrote, err := j.Check(t.Target)
	if err != nil {
		return s, fmt.Errorf("%s: cannot verify it against the journal: %w", t.Target.Path, err)
	}
	if j.recorded > 0 && !usable {
		return State{Unusable: "another program has used the target since"}, nil
	}
	if name := j.cut.Name(); j.recorded > 0 && name != t.Options.BlockHash().Name() {
		resumes := fmt.Sprintf("with {{digest %s}}", name)
		switch {
		case t.Options.Delta:
			resumes = "without {{delta}}"
		case t.Options.NoVerify:
			resumes = "without {{no-verify}}"
		}
		return State{Started: wrote, Digest: name, Unusable: fmt.Sprintf("it hashed blocks with %s; resume it %s", name, resumes)}, nil
	}
	return State{Started: wrote, Stored: min(int64(j.recorded)*j.block, t.Source.Size)}, nil
}

// filled returns the task with defaults applied, after checking its limits.
func (t Task) filled() (Task, error) {
	if err := t.Options.CheckSize(t.Source.Size); err != nil {
		return t, fmt.Errorf("%s: %w", t.Source.Path, err)
	}
	t.Options = t.Options.filled()
	return t, nil
}

// CheckSource returns objections to reading the source. With a snapshot, the only
// objections are that LVM cannot take one, and an incomplete copy of a volume.
func (t Task) CheckSource() []finding.Finding {
	switch {
	case t.LVMSnapshot == "":
		return checkSource(t.Source)
	case t.Source.Kind != KindLVM:
		return []finding.Finding{{ID: "source-no-lv", Severity: finding.Fail,
			Summary: t.Source.Path + " is not a logical volume: LVM cannot take a snapshot of it", Remedy: "omit {{lvm-snapshot}}"}}
	}
	var j findings
	j.checkComplete(t.Source)
	return j
}

// CheckTarget returns objections to writing to the target. If the target holds an
// interrupted copy of this source, contents are no objection.
func (t Task) CheckTarget(state State) []finding.Finding {
	return slices.DeleteFunc(checkTarget(t.Source, t.Target, t.Allow), func(f finding.Finding) bool { return f.Consent && state.Started })
}

// refreshTarget returns the task and its state with a new inspection of the target,
// because time has passed since planning. It returns an error if the target cannot
// be written to.
func (t Task) refreshTarget(ctx context.Context) (_ Task, state State, err error) {
	if t.Target, err = Inspect(ctx, t.Target.Path); err != nil {
		return t, state, err
	}
	if !t.isStream() {
		if state, err = StateOf(t); err != nil {
			return t, state, err
		}
	}
	return t, state, finding.Refusal(finding.Failed(t.CheckTarget(state)))
}

// Copy does this end's part of a task over a link, or all of it if link is nil. It
// always closes the link and everything it opens. std are the streams that Standard
// stands for.
//
// progress may be nil. It is called about twice a second and once at the end.
func Copy(ctx context.Context, t Task, link *tcp.Link, std Streams, progress func(transfer.Progress)) (Result, error) {
	run, err := t.open(ctx, link, std, progress)
	if err != nil {
		if link != nil {
			link.Abort(err)
		}
		return Result{}, err
	}
	return run()
}

// open opens the ends and returns the function that copies.
func (t Task) open(ctx context.Context, link *tcp.Link, std Streams, progress func(transfer.Progress)) (run func() (Result, error), err error) {
	if t, err = t.filled(); err != nil {
		return nil, err
	}
	if !t.Read && !t.Write || (link == nil) != (t.Read && t.Write) {
		return nil, errors.New("invalid request: a device job needs one link, or both ends on this host")
	}
	if t.isStream() {
		return t.openStream(ctx, link, std, progress)
	}
	var src *Source
	if t.Read {
		if src, err = openSource(ctx, t); err != nil {
			return nil, err
		}
	}
	if !t.Write {
		return func() (Result, error) { return send(ctx, src, link, t.Options, progress) }, nil
	}
	dst, j, err := t.openTarget(ctx)
	switch {
	case err != nil && src != nil:
		return nil, errors.Join(err, src.Close())
	case err != nil:
		return nil, err
	case src != nil:
		return func() (Result, error) { return copyLocal(ctx, src, dst, j, t.Options, progress) }, nil
	}
	return func() (Result, error) { return receive(ctx, link, dst, j, t.Source.Size, t.Options, progress) }, nil
}

// openTarget opens the target and its journal. OpenTarget checks that the device is
// still the planned one.
func (t Task) openTarget(ctx context.Context) (*Target, *Journal, error) {
	now, state, err := t.refreshTarget(ctx)
	if err != nil {
		return nil, nil, err
	}
	if !t.Target.Same(now.Target) {
		return nil, nil, fault.Refusef("inspect the device, then run the same command again", "%s is another device than the planned one", t.Target.Path)
	}
	dst, err := OpenTarget(ctx, t.Target, t.Source.Size, t.Sparse)
	if err != nil {
		return nil, nil, err
	}
	if err := removeVolumeRecord(t.Target); err != nil {
		return nil, nil, errors.Join(err, dst.Discard())
	}
	use := journalResume
	if t.NoResume || state.Stored == 0 {
		use = journalNew
	}
	j, _, err := OpenJournal(t.Source, now.Target, now.Options.BlockHash(), use)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("journal of %s: %w", t.Target.Path, err), dst.Discard())
	}
	return dst, j, nil
}

// Options control a copy. Both ends must use the same Block, a power of two from
// MinBlock to tcp.MaxRaw. The other fields of transfer.Options work as for a
// stream.
type Options struct {
	transfer.Options
	// Delta makes the target hash its blocks, so that only different blocks are
	// sent.
	Delta bool
	// NoVerify disables the read-back. There is no digest then, except with Quick
	// or Delta.
	NoVerify bool
	// Quick hashes blocks with xxh3 instead of BLAKE3. xxh3 detects all faults of
	// memory, disks and cables. Earlier builds reject this field.
	Quick bool `json:"quick,omitempty"`
	// VerifyLater reads back after all writes, which avoids seeks on rotating
	// disks.
	VerifyLater bool
}

// Limits and defaults of Options.
const (
	MinBlock = 64 << 10
	// A device has shorter stalls than a pool, so less buffering is enough. It
	// stays in the processor's cache: with 64 MiB, a copy over loopback used an
	// eighth more CPU.
	defaultBuffer = 16 << 20
	// workerMemory limits the blocks held by the readers or writers, in addition to
	// the buffer, in bytes.
	workerMemory = 32 << 20
)

// filled returns the options with defaults applied.
func (o Options) filled() Options {
	buffer := o.Buffer
	o.Options = o.Options.Filled()
	if buffer <= 0 {
		o.Buffer = defaultBuffer
	}
	return o
}

// maxBlocks limits the blocks of a device, because each end keeps up to 49 bytes
// per block. With the largest blocks, this is 1 PiB.
const maxBlocks = 1 << 26

// CheckSize returns an error if a device of size bytes is too large for the block size.
// Check sizes from a peer with it before allocating memory.
func (o Options) CheckSize(size int64) error {
	block := int64(o.filled().Block)
	switch {
	case size < 0:
		return fmt.Errorf("invalid device size of %d bytes", size)
	case size/block >= maxBlocks:
		return fault.Refusef("use larger blocks: {{bs 16M}}", "%d bytes in blocks of %d: more than %d blocks", size, block, maxBlocks)
	}
	return nil
}

// workers returns the number of goroutines that read, or write, a device. They keep
// a drive's queue full while some of them compute. Large blocks need fewer, and
// each goroutine holds one block.
func (o Options) workers() int {
	return min(16, max(4, 2*runtime.NumCPU()), max(2, workerMemory/o.Block))
}

// BlockHash returns how both ends divide and hash the device. Delta requires BLAKE3,
// because it accepts any target block with the same sum, no matter who wrote it.
func (o Options) BlockHash() BlockHash {
	return BlockHash{Block: o.Block, Quick: (o.Quick || o.NoVerify) && !o.Delta}
}

// Hash names that Options.Digest and BlockHash.Name return.
const (
	XXH3   = "xxh3"
	BLAKE3 = "blake3"
)

// Digest returns the hash used for the digests of a copy or comparison, or "" if
// there is none.
func (o Options) Digest() string {
	if o.NoVerify && !o.Quick && !o.Delta {
		return ""
	}
	return o.BlockHash().Name()
}

// digest formats a digest in hex, or returns "" if there is none.
func (o Options) digest(root [32]byte) string {
	switch o.Digest() {
	case BLAKE3:
		return hex.EncodeToString(root[:])
	case XXH3:
		return hex.EncodeToString(root[:tcp.MarkSize])
	}
	return ""
}

// queueLen returns the number of blocks queued between two stages, without the held
// blocks of connections and compressors.
func (o Options) queueLen(held int) int { return max(2, int(o.Buffer/int64(o.Block))-held) }

// frameSize returns the maximum payload of a frame. Incompressible data grows by 3
// bytes per zstd block of at least 64 KiB, and the compressor discovers this only
// at the end: RFC 8878, section 3.1.1.2.
func (o Options) frameSize() int { return o.Block + o.Block>>14 + 64 + tcp.TrailerSize }

// Result is one end's result of a copy.
type Result struct {
	transfer.Result
	Device Account `json:"device"`
}

// Account holds the statistics of a copy. Fields that only the other end knows are
// 0.
type Account struct {
	Size     int64 `json:"size"`
	Block    int   `json:"block"`
	Data     int64 `json:"data"`              // bytes sent or written as data
	Zeros    int64 `json:"zeros"`             // zero bytes, neither sent nor stored as data
	Present  int64 `json:"present"`           // bytes already on the target
	Resumed  int64 `json:"resumed,omitempty"` // part of Present: bytes in the journal
	Verified int64 `json:"verified"`          // bytes read back and found correct
	// SourceDigest and TargetDigest are in hex, hashed as Options.Digest says:
	// BLAKE3 of all Size bytes, as b3sum prints it, or xxh3-128 of all sums, which
	// depends on the block size. They are empty without a digest. TargetDigest
	// covers only sums of blocks that were read back with the expected marks.
	SourceDigest string  `json:"source_digest,omitempty"`
	TargetDigest string  `json:"target_digest,omitempty"`
	BadRanges    []Range `json:"bad_ranges,omitempty"`
}
