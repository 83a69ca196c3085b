package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chaos describes one round of TestZFSChaos: the transfer and the faults. The seed determines
// all fields.
type chaos struct {
	seed      uint64
	work      string // full, incremental, tree, dev, delta, replicate
	direction string // push, pull, third (between two remote hosts), local
	wire      string
	mib       int    // approximate size of the data
	rate      int    // --bwlimit in MiB/s
	kind      string // of data; send: plain, encrypted, volume; dev: file, device
	// flags are additional flags of the command.
	flags []string
	snap  string // snapshot in the command, "" for the most recent one
	// consent is "decrypt" or "rollback" if the command permits that.
	consent string
	// disk is "source" or "target" if the pool or device of that end is on a disk that can
	// fail. Otherwise it is "".
	disk string
	// uncached deletes the cached copies of zxfer first, so that zxfer must be copied to the
	// remote host.
	uncached bool
	// repeat repeats the command after it succeeded.
	repeat bool
	// patient waits until the processes left by a fault have ended before it continues.
	patient bool
	faults  []chaosFault // one per attempt; a last attempt has no fault
}

// chaosFault is a fault during one attempt.
type chaosFault struct {
	kind string
	// arg is the argument of the fault: a process name or arguments for netem.
	arg string
	// duringTransfer delays the fault until data moves.
	duringTransfer bool
	delay          time.Duration
	duration       time.Duration
}

func (h chaosFault) String() string {
	when := "the start"
	if h.duringTransfer {
		when = "data moves"
	}
	return fmt.Sprintf("%s %s %s after %s, for %s", h.kind, h.arg, h.delay, when, h.duration)
}

func (c chaos) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s of %d MiB (%s), %s over %q at %d MiB/s", c.direction, c.work, c.mib, c.kind, strings.Join(c.flags, " "), c.wire, c.rate)
	for _, s := range []string{c.snap, c.consent} {
		if s != "" {
			b.WriteString(", " + s)
		}
	}
	if c.disk != "" {
		fmt.Fprintf(&b, ", %s on a failing disk", c.disk)
	}
	if c.uncached {
		b.WriteString(", zxfer not cached")
	}
	if !c.patient {
		b.WriteString(", without waiting")
	}
	for _, h := range c.faults {
		b.WriteString("; " + h.String())
	}
	return b.String()
}

// isWork reports whether the round does one of these works.
func (c chaos) isWork(works ...string) bool { return slices.Contains(works, c.work) }

// weighted is a choice that pick makes in proportion to its weight.
type weighted struct {
	value  string
	weight int
}

func pick(r *rand.Rand, choices ...weighted) string {
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	n := r.IntN(total)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			return c.value
		}
	}
	panic("unreachable")
}

// newRand returns a random number generator for a purpose. Consecutive seeds give unrelated
// sequences.
func newRand(seed uint64, purpose string) *rand.Rand {
	return rand.New(rand.NewChaCha8(sha256.Sum256(fmt.Appendf(nil, "%s %d", purpose, seed))))
}

func choose(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

func randomDuration(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(d))).Round(10 * time.Millisecond)
}

// newChaos returns the round of a seed. It is deterministic.
func newChaos(seed uint64) chaos {
	r := newRand(seed, "round")
	c := chaos{
		seed: seed, patient: r.IntN(3) > 0, uncached: r.IntN(16) == 0, repeat: r.IntN(6) == 0,
		work:      pick(r, weighted{"full", 4}, weighted{"incremental", 4}, weighted{"tree", 4}, weighted{"dev", 3}, weighted{"delta", 2}, weighted{"replicate", 4}),
		direction: pick(r, weighted{"push", 6}, weighted{"pull", 4}, weighted{"third", 2}, weighted{"local", 1}),
		mib:       2 + r.IntN(9), rate: 4 + r.IntN(9),
	}
	if r.IntN(16) == 0 {
		c.mib, c.rate = 16+r.IntN(25), 16
	}
	c.chooseData(r)
	c.chooseWire(r)
	c.chooseFlags(r)
	for range []int{1, 1, 1, 2}[r.IntN(4)] {
		c.faults = append(c.faults, c.chooseFault(r))
	}
	return c
}

func (c *chaos) chooseData(r *rand.Rand) {
	switch {
	case c.isWork("dev", "delta"):
		c.kind = choose(r, "file", "device")
		if c.kind == "device" && r.IntN(2) == 0 {
			c.disk = choose(r, "source", "target")
		}
		return
	case c.work == "replicate":
		c.kind = choose(r, "plain", "encrypted")
	default:
		c.kind = pick(r, weighted{"plain", 3}, weighted{"encrypted", 3}, weighted{"volume", 1})
		if c.work != "full" && c.kind != "volume" && r.IntN(8) == 0 {
			c.consent = "rollback"
		}
	}
	if c.kind == "encrypted" && c.work == "full" && r.IntN(6) == 0 {
		c.consent = "decrypt"
	}
	if r.IntN(5) == 0 {
		c.disk = choose(r, "source", "target", "target")
		// OpenZFS 2.3.9 panics if a pool resumes after a suspension during a raw receive
		// (zio_encrypt of a reissued write).
		if c.kind == "encrypted" {
			c.disk = "source"
		}
	}
}

func (c *chaos) chooseWire(r *rand.Rand) {
	wires := []weighted{{"auto", 2}, {"tls", 3}, {"signed", 3}, {"plain", 2}, {"ssh", 2}, {"nc", 3}}
	if c.direction == "third" {
		wires = wires[:4] // relays and nc work only between this host and another
	} else if c.isWork("dev", "delta", "replicate") {
		wires = wires[:5] // only send supports nc
	}
	if c.wire = pick(r, wires...); c.direction == "local" {
		c.wire = "auto"
	}
}

func (c *chaos) chooseFlags(r *rand.Rand) {
	add := func(chance int, flags ...string) {
		if r.IntN(chance) == 0 {
			c.flags = append(c.flags, flags...)
		}
	}
	across := c.direction != "local" && c.wire != "nc"
	if c.work == "replicate" {
		return
	}
	add(2, "--buffer", choose(r, "1MiB", "4MiB"))
	add(4, "--retries", choose(r, "0", "1", "20"))
	if across {
		add(4, "--streams", choose(r, "1", "2", "3"))
		add(4, "--compress", choose(r, "off", "zstd:1", "auto"))
		if c.wire != "ssh" {
			add(4, "--dial", choose(r, "source", "target"))
		}
	}
	if c.isWork("dev", "delta") {
		add(4, "--no-verify")
		return
	}
	if c.wire != "nc" {
		add(5, "--verify")
	}
	add(5, "--hold", "chaos")
	add(5, "--bookmark")
	add(5, "-p")
	if c.work == "tree" {
		add(2, "--parallel", choose(r, "2", "3"))
	}
	switch r.IntN(8) {
	case 0:
		c.flags = append(c.flags, "--latest-only")
	case 1:
		c.snap = "@s1"
	}
}

// processes returns the processes of the transfer on either host.
func (c *chaos) processes() []weighted {
	w := []weighted{{"zxfer", 3}}
	if c.direction != "local" {
		w = append(w, weighted{"ssh", 2}, weighted{"sshd", 1}, weighted{"other host", 1})
		if c.wire != "nc" {
			w = append(w, weighted{"agent", 3})
		} else {
			w = append(w, weighted{"nc", 3}, weighted{"sh", 1})
		}
	}
	if !c.isWork("dev", "delta") {
		w = append(w, weighted{"zfs send", 3}, weighted{"zfs receive", 3}, weighted{"python", 1})
	}
	return w
}

func (c *chaos) chooseFault(r *rand.Rand) chaosFault {
	faults := []weighted{{"none", 1}, {"kill", 8}, {"signal", 2}, {"stop", 3}, {"clock", 2}, {"rival", 1}}
	if c.direction != "local" {
		faults = append(faults, weighted{"cut", 4}, weighted{"reset", 2}, weighted{"netem", 4})
		if c.wire != "nc" {
			faults = append(faults, weighted{"version", 1})
		}
	}
	if c.disk != "" {
		faults = append(faults, weighted{"disk", 24})
	}
	if c.disk != "source" {
		faults = append(faults, weighted{"full", 2})
	}
	h := chaosFault{kind: pick(r, faults...), duringTransfer: r.IntN(4) > 0, duration: 200*time.Millisecond + randomDuration(r, 2*time.Second)}
	h.delay = randomDuration(r, time.Duration(c.mib)*time.Second/time.Duration(c.rate)) // within the expected duration of the transfer
	switch h.kind {
	case "kill":
		h.arg = pick(r, c.processes()...)
	case "stop":
		h.arg = pick(r, c.processes()...)
		h.duration = maybeLonger(r, h.duration)
	case "signal":
		h.arg = choose(r, "INT", "TERM", "HUP")
	case "cut":
		h.duration = maybeLonger(r, h.duration)
	case "netem":
		h.arg = choose(r, "loss 1%", "loss 4%", "corrupt 1%", "duplicate 10%", "delay 5ms reorder 20%", "delay 10ms loss 1% corrupt 0.5% duplicate 2%")
	case "clock":
		h.arg = choose(r, "-960h", "-1h", "-2s", "90s", "3h", "9600h")
	case "disk":
		h.arg = choose(r, "errors", "errors", "drops")
		// Only verification detects a disk that drops writes.
		if c.disk == "source" || !c.isWork("dev", "delta") || slices.Contains(c.flags, "--no-verify") {
			h.arg = "errors"
		}
	case "version":
		h.arg = choose(r, "protocol", "machine", "other", "other")
		h.duringTransfer = false
	}
	return h
}

// maybeLonger occasionally returns a duration that exceeds the connection timeouts.
func maybeLonger(r *rand.Rand, d time.Duration) time.Duration {
	if r.IntN(16) == 0 {
		return 25*time.Second + randomDuration(r, 15*time.Second)
	}
	return d
}

// TestChaosIsDeterministic generates each round twice and expects equal rounds. All works,
// directions, wires and faults must occur.
func TestChaosIsDeterministic(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed := range uint64(2000) {
		c := newChaos(seed)
		require.Equal(t, c, newChaos(seed))
		seen[c.work]++
		seen[c.direction]++
		seen["wire "+c.wire]++
		seen["data "+c.kind]++
		for _, h := range c.faults {
			seen[strings.TrimSpace(h.kind+" "+h.arg)]++
		}
	}
	for _, want := range []string{"full", "incremental", "tree", "dev", "delta", "replicate", "push", "pull", "third", "local",
		"wire tls", "wire signed", "wire plain", "wire ssh", "wire nc", "data volume", "data encrypted",
		"kill zxfer", "kill agent", "kill zfs send", "kill zfs receive", "kill ssh", "kill sshd", "kill nc", "kill python", "kill other host",
		"stop agent", "signal INT", "cut", "reset", "netem corrupt 1%", "full", "disk errors", "disk drops", "clock -960h", "version protocol"} {
		require.GreaterOrEqual(t, seen[want], 5, want)
	}
}
