package zfs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// SendArgs returns the arguments of zfs(8) that produce the stream, "send"
// first, after checking every name in it.
func SendArgs(s SendSpec) ([]string, error) { return sendArgs(s) }

// EstimateArgs returns the arguments of zfs(8) that print the size of the
// stream for ParseEstimate.
func EstimateArgs(s SendSpec) ([]string, error) { return sendArgs(s, "-nvP") }

func sendArgs(s SendSpec, options ...string) ([]string, error) {
	args := append([]string{"send"}, options...)
	if s.Token != "" {
		// The token fixes everything else, stream flags included.
		if err := checkTokenSyntax(s.Token); err != nil {
			return nil, err
		}
		return append(args, "-t", s.Token), nil
	}
	to := s.Dataset + "@" + s.To
	if _, _, err := ParseSnapshot(to); err != nil {
		return nil, err
	}
	args = append(args, s.Flags.args()...)
	if s.From == "" {
		if len(s.Through) > 0 {
			return nil, fmt.Errorf("send %s: a full stream carries no snapshots on its way, got %d", to, len(s.Through))
		}
		return append(args, to), nil
	}
	if err := s.checkBase(); err != nil {
		return nil, fmt.Errorf("send %s: base: %w", to, err)
	}
	option := "-i"
	if len(s.Through) > 0 {
		option = "-I"
	}
	return append(args, option, s.From, to), nil
}

// args orders options as zfs(8) documents them. -w implies the others, but
// which of them matters is easier to read where they are spelled out.
func (f StreamFlags) args() []string {
	var out []string
	for _, o := range []struct {
		on   bool
		name string
	}{{f.Raw, "-w"}, {f.LargeBlocks, "-L"}, {f.Embedded, "-e"}, {f.Compressed, "-c"}} {
		if o.on {
			out = append(out, o.name)
		}
	}
	return out
}

func (s SendSpec) checkBase() error {
	for _, t := range s.Through {
		if err := CheckComponent(t); err != nil {
			return err
		}
	}
	switch {
	case strings.HasPrefix(s.From, "@"):
		return CheckComponent(s.From[1:])
	case strings.HasPrefix(s.From, "#"):
		if len(s.Through) > 0 {
			return errors.New("a range (-I) cannot begin at a bookmark; send the first snapshot alone")
		}
		return CheckComponent(s.From[1:])
	}
	_, _, err := ParseSnapshot(s.From) // a clone's origin
	return err
}

// ForDigest returns the flags of a stream whose ContentDigest is equal on
// both sides. A raw stream carries blocks as they are on disk, which a raw
// receive keeps. Otherwise blocks are compared as applications see them: how
// each pool compresses or embeds them is its own business.
func (f StreamFlags) ForDigest() StreamFlags {
	if f.Raw {
		return f
	}
	return StreamFlags{LargeBlocks: f.LargeBlocks}
}

// ReceiveArgs returns the arguments of zfs(8) that store a stream, "receive"
// first, after checking names and properties.
func ReceiveArgs(r ReceiveSpec) ([]string, error) {
	if _, err := ParseDataset(r.Target); err != nil {
		return nil, err
	}
	if r.Corrective {
		return correctiveArgs(r)
	}
	args := []string{"receive", "-s", "-u"}
	if r.Whole {
		args = []string{"receive", "-u"}
	}
	if r.Rollback {
		args = append(args, "-F")
	}
	if r.Origin != "" {
		if _, _, err := ParseSnapshot(r.Origin); err != nil {
			return nil, fmt.Errorf("receive %s: origin: %w", r.Target, err)
		}
		args = append(args, "-o", "origin="+r.Origin)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Set)) {
		if err := CheckProperty(name); err != nil {
			return nil, fmt.Errorf("receive %s: %w", r.Target, err)
		}
		if name == "origin" {
			return nil, fmt.Errorf("receive %s: the origin is chosen by the plan, not by a property", r.Target)
		}
		if err := r.checkSet(name); err != nil {
			return nil, fmt.Errorf("receive %s: %w", r.Target, err)
		}
		args = append(args, "-o", name+"="+r.Set[name])
	}
	return append(args, r.Target), nil
}

// checkSet judges a value of Set once more, whoever planned the receive.
func (r *ReceiveSpec) checkSet(name string) error {
	value := r.Set[name]
	if !slices.Contains(r.Carried, name) {
		return CheckValue(name, value)
	}
	t := Filesystem
	if r.Arrival.Volume {
		t = Volume
	}
	if err := r.Carry.Check(t, name, value); err != nil {
		return fmt.Errorf("%s is not set to %s: %w", name, cutValue(value), err)
	}
	return nil
}

// HealPrefix begins the names of the snapshots that blocks are healed through. A
// corrective receive leaves its snapshot marked as half received, for ever: it can
// be sent and rolled back to, but neither mounted nor cloned, and its clones are
// destroyed when the pool is imported (2.3.9, 2.4.4). So it is done into snapshots
// of zxfer's own only, that share the damaged blocks and are destroyed afterwards.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dmu_recv_begin_sync, dmu_recv_end_sync)
const HealPrefix = "zxfer-heal-"

func correctiveArgs(r ReceiveSpec) ([]string, error) {
	if r.Rollback || r.Origin != "" || len(r.Set) > 0 || len(r.Arrival.Snapshots) != 1 {
		return nil, fmt.Errorf("receive %s: a corrective receive is into one snapshot that is there, and changes nothing else", r.Target)
	}
	name := r.Arrival.Snapshots[0].Name
	if err := CheckComponent(name); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(name, HealPrefix) {
		return nil, fmt.Errorf("receive %s: @%s is not zxfer's own, and could not be mounted afterwards", r.Target, name)
	}
	// Without -s, which would note a state to resume at the snapshot.
	return []string{"receive", "-c", r.Target + "@" + name}, nil
}

// ListVersionsArgs lists the snapshots and bookmarks of datasets, and where
// recursive of all below them, for
// ParseVersions. Only the columns that OpenZFS 2.2 and later answer from the
// directory alone are asked for: another column, or a sort key, opens every
// snapshot.
func ListVersionsArgs(recursive bool, names ...string) []string {
	args := []string{"list", "-Hp"}
	if recursive {
		args = append(args, "-r")
	} else {
		args = append(args, "-d", "1") // versions count as children
	}
	return append(append(args, "-o", "name,guid,createtxg", "-t", "snapshot,bookmark"), names...)
}

// CommandLine quotes an argv so that a POSIX shell reads it back as the same
// arguments, wherever it stands in a script.
func CommandLine(argv []string) string {
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = shellQuote(a)
	}
	return strings.Join(quoted, " ")
}

func shellQuote(s string) string {
	plain := s != ""
	for i := range len(s) {
		c := s[i]
		if !letter(c) && (c < '0' || c > '9') && strings.IndexByte("-_.:/@%+=,", c) < 0 {
			plain = false
		}
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
