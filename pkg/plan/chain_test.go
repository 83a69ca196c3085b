package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

const (
	encrypted = "encryption=aes-256-gcm"
	locked    = "keystatus=unavailable"
	unlocked  = "keystatus=available"
)

func flags(letters string) zfs.StreamFlags {
	f, _ := parseFlags(letters)
	return f
}

// TestEncryption checks the stream flags of a chain, and refusals to mix raw and plain streams.
func TestEncryption(t *testing.T) {
	t.Parallel()
	decrypt := func(r *Request) { r.Decrypt = true }
	const recordedRaw, recordedPlain = zfs.FlagsProperty + "=w", zfs.FlagsProperty + "=Lec"
	tests := []struct {
		name    string
		ask     func(*Request)
		source  []string // properties; nil = not encrypted
		target  []string // nil = absent
		flags   string
		refused string
		texts   []string
	}{
		{"raw without a key", nil, []string{encrypted, locked}, nil, "w", "", nil},
		{"raw with a loaded key", nil, []string{encrypted, unlocked}, nil, "w", "", nil},
		{"raw continues", nil, []string{encrypted, locked}, []string{encrypted, locked, recordedRaw}, "w", "", nil},
		{"raw continues a foreign chain", nil, []string{encrypted, locked}, []string{encrypted, locked}, "w", "", nil},
		{"raw continues with large blocks", nil, []string{encrypted, locked, "recordsize=1048576"}, []string{encrypted, locked}, "w", "", nil},
		{"decrypted", decrypt, []string{encrypted, unlocked}, nil, "Lc", "", nil},
		{"decrypted continues", decrypt, []string{encrypted, unlocked}, []string{zfs.FlagsProperty + "=Lc"}, "Lc", "", nil},
		{"decrypted without a key", decrypt, []string{encrypted, locked, "encryptionroot=tank"}, nil, "", KeyNotLoaded, []string{"alpha:tank/a", "zfs load-key tank\n", "or omit {{decrypt}}"}},
		{"raw onto unencrypted", nil, []string{encrypted, locked}, []string{}, "", EncryptionMixed, []string{"beta:vault/a is not", "{{decrypt}}"}},
		{"raw onto a decrypted copy", nil, []string{encrypted, locked}, []string{encrypted, unlocked, recordedPlain}, "", EncryptionMixed, []string{"beta:vault/a was not received raw"}},
		{"decrypted onto a raw chain", decrypt, []string{encrypted, unlocked}, []string{encrypted, unlocked, recordedRaw}, "", EncryptionMixed, []string{"was received raw", "8758"}},
		{"plain onto encrypted", nil, nil, []string{encrypted, unlocked, recordedPlain}, "Lc", "", nil},
		{"plain onto encrypted, inherited key", nil, nil, []string{encrypted, unlocked, recordedPlain, "encryptionroot=vault"}, "Lc", "", nil},
		{"plain onto encrypted and locked", nil, nil, []string{encrypted, locked, "encryptionroot=vault"}, "", KeyNotLoaded, []string{"zfs load-key vault"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := request()
			if tt.ask != nil {
				tt.ask(&req)
			}
			datasets := []*zfs.Dataset{dataset(t, "tank/a", "@a,1 @b,2 @c,3", tt.source...)}
			if tt.target != nil {
				datasets = append(datasets, dataset(t, "vault/a", "@a,1", tt.target...))
			}
			p := mustMake(t, req, stateOf(datasets...))
			if tt.refused != "" {
				requireConflict(t, p, tt.refused, tt.texts...)
				return
			}
			d := onlyDataset(t, p)
			require.NotEmpty(t, d.Steps)
			for _, st := range d.Steps {
				require.Equal(t, flags(tt.flags), st.Send.Flags, stepsText(d))
			}
			require.Equal(t, flags(tt.flags).Raw, d.Encrypted)
			require.Empty(t, p.Notes)
		})
	}
}

func TestFlagsOfPlainChains(t *testing.T) {
	t.Parallel()
	without := func(features ...string) func(*State) {
		return func(s *State) {
			for _, f := range features {
				s.Target.Pool.Features[f] = "disabled"
			}
		}
	}
	tests := []struct {
		name   string
		change func(*State)
		source []string
		target []string
		flags  string
		note   string
	}{
		{"all", nil, nil, nil, "Lc", ""},
		{"no large blocks on the target", without("large_blocks"), nil, nil, "c", ""},
		{"no lz4 on the target", without("lz4_compress"), nil, nil, "L", ""},
		{"no zstd on the target, none on the source", without("zstd_compress"), nil, nil, "Lc", ""},
		{"no zstd on the target, some on the source", func(s *State) {
			without("zstd_compress")(s)
			s.Source.Pool.Features["zstd_compress"] = "active"
		}, nil, nil, "L", ""},
		{"features unknown", func(s *State) { s.Target.Pool.Features = nil }, nil, nil, "none", ""},
		{"encrypted parent", func(s *State) {
			s.Target.Ancestors[0].Properties = map[string]zfs.Property{"encryption": {Value: "aes-256-gcm"}, "keystatus": {Value: "available"}}
		}, nil, nil, "Lc", ""},
		{"as recorded", nil, nil, []string{zfs.FlagsProperty + "=c"}, "c", ""},
		{"as recorded, except features new on the source", func(s *State) {
			without("zstd_compress")(s)
			s.Source.Pool.Features["zstd_compress"] = "active"
		}, nil, []string{zfs.FlagsProperty + "=Lec"}, "L", ""},
		{"as recorded: none", nil, nil, []string{zfs.FlagsProperty + "=none"}, "none", ""},
		{"as recorded, with -L", without("large_blocks"), nil, []string{zfs.FlagsProperty + "=Lec"}, "Lc", ""},
		{"foreign record", nil, nil, []string{zfs.FlagsProperty + "=L\nvault\ttype"}, "c", "beta:vault/a: zxfer:stream has a value that zxfer did not write, and is ignored; to clear it: zfs inherit zxfer:stream vault/a"},
		{"foreign chain", nil, nil, []string{}, "c", ""},
		{"foreign chain with large blocks", nil, []string{"recordsize=1048576"}, []string{}, "c", "zfs set zxfer:stream=Lc vault/a"},
		{"foreign chain, no large blocks on the target", func(s *State) { s.Target.Pool.Features["large_blocks"] = "enabled" }, []string{"recordsize=1048576"}, []string{}, "c", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			datasets := []*zfs.Dataset{dataset(t, "tank/a", "@a,1 @b,2", tt.source...)}
			if tt.target != nil {
				datasets = append(datasets, dataset(t, "vault/a", "@a,1", tt.target...))
			}
			state := stateOf(datasets...)
			if tt.change != nil {
				tt.change(&state)
			}
			p := mustMake(t, request(), state)
			d := onlyDataset(t, p)
			for _, st := range d.Steps {
				require.Equal(t, tt.flags, flagString(st.Send.Flags))
			}
			if tt.target == nil {
				require.Equal(t, tt.flags, d.Steps[0].Receive.Set[zfs.FlagsProperty], "the flags are recorded")
			}
			if tt.note == "" {
				require.Empty(t, p.Notes)
			} else {
				require.Contains(t, notes(p), tt.note)
			}
		})
	}
	inherited := dataset(t, "vault/a", "@a,1")
	inherited.Properties[zfs.FlagsProperty] = zfs.Property{Value: "c", Source: "inherited from vault"}
	d := onlyDataset(t, mustMake(t, request(), stateOf(dataset(t, "tank/a", "@a,1 @b,2"), inherited)))
	require.Equal(t, "c", flagString(d.Steps[0].Send.Flags), "an inherited record is of another dataset")
}

func TestParseFlags(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"none", "w", "L", "c", "Lc", "Lec", "ec"} {
		f, ok := parseFlags(s)
		require.True(t, ok, s)
		require.Equal(t, strings.ReplaceAll(s, "e", ""), strings.ReplaceAll(flagString(f), "e", ""), "-e is not continued")
		require.False(t, f.Embedded)
	}
	for _, s := range []string{"", "-", "no", "x", "Lec "} {
		_, ok := parseFlags(s)
		require.False(t, ok, s)
	}
}

// FuzzParseFlags parses recorded flags, which any host may have written.
func FuzzParseFlags(f *testing.F) {
	for _, s := range []string{"none", "w", "Lec", "L", "", "LL", "x", "L\n", "noneL"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		flags, ok := parseFlags(s)
		require.Equal(t, ok, s == "none" || s != "" && strings.Trim(s, "wLec") == "")
		if ok {
			again, ok := parseFlags(flagString(flags))
			require.True(t, ok)
			if !flags.Raw {
				require.Equal(t, flags, again)
			}
			require.Equal(t, flags.Raw, again.Raw)
		}
	})
}

// TestPlainBelowEncryptedReplica expects that the copy of an unencrypted dataset below an encrypted
// one is unencrypted, because the key of the parent's copy is not loaded.
func TestPlainBelowEncryptedReplica(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	p := mustMake(t, req, stateOf(dataset(t, "tank/a", "@s,1", encrypted, locked), dataset(t, "tank/a/plain", "@s,2", "encryption=off")))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "off", p.Datasets[1].Steps[0].Receive.Set["encryption"])
	require.Equal(t, "Lc", flagString(p.Datasets[1].Steps[0].Send.Flags))
	require.False(t, p.Datasets[1].Encrypted)
	require.NotContains(t, p.Datasets[0].Steps[0].Receive.Set, "encryption")

	// The encrypted parent exists already.
	p = mustMake(t, req, stateOf(dataset(t, "tank/a", "@s,1", encrypted, locked), dataset(t, "tank/a/plain", "@s,2", "encryption=off"),
		dataset(t, "vault/a", "@s,1", encrypted, locked)))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "off", p.Datasets[1].Steps[0].Receive.Set["encryption"])
}

func TestPlainBelowEncryptedParent(t *testing.T) {
	t.Parallel()
	under := func(status string) State {
		s := stateOf(dataset(t, "tank/a", "@s,1"))
		s.Target.Ancestors = append(s.Target.Ancestors, dataset(t, "vault/enc", "", encrypted, status, "encryptionroot=vault/enc"))
		return s
	}
	req := request().with(func(r *Request) { r.Target = "vault/enc/" })
	d := onlyDataset(t, mustMake(t, req, under(unlocked)))
	require.NotContains(t, d.Steps[0].Receive.Set, "encryption")
	requireConflict(t, mustMake(t, req, under(locked)), KeyNotLoaded, "beta:vault/enc/a", "zfs load-key vault/enc")
	off := req.with(func(r *Request) { r.Set = map[string]string{"encryption": "off"} })
	d = onlyDataset(t, mustMake(t, off, under(locked)))
	require.Equal(t, "Lc", flagString(d.Steps[0].Send.Flags))

	raw := under(locked)
	raw.Source.Datasets[0] = dataset(t, "tank/a", "@s,1", encrypted, locked)
	require.Equal(t, "w", flagString(onlyDataset(t, mustMake(t, req, raw)).Steps[0].Send.Flags), "a raw stream needs no key on the target")
}

func TestFeatures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		missing string
		used    string // feature that the source's pool uses
		source  []string
		want    bool // the plan is refused
	}{
		{"encryption", "encryption", "", []string{encrypted}, true},
		{"raw large blocks", "large_blocks", "large_blocks", []string{encrypted, "recordsize=1048576"}, true},
		{"raw large blocks of a volume", "large_blocks", "large_blocks", []string{encrypted, "volblocksize=262144", "type=volume"}, true},
		{"raw small blocks", "large_blocks", "large_blocks", []string{encrypted, "recordsize=131072"}, false},
		{"plain large blocks are split", "large_blocks", "large_blocks", []string{"recordsize=1048576"}, false},
		{"raw zstd", "zstd_compress", "zstd_compress", []string{encrypted, "compression=zstd-3"}, true},
		{"plain zstd is decompressed", "zstd_compress", "zstd_compress", []string{"compression=zstd"}, false},
		{"large dnodes", "large_dnode", "large_dnode", []string{"dnodesize=auto"}, true},
		{"large dnodes, none in use", "large_dnode", "", []string{"dnodesize=auto"}, false},
		{"long names", "longname", "longname", []string{"longname=on"}, true},
		{"long names, off", "longname", "longname", []string{"longname=off"}, false},
		{"legacy dnodes", "large_dnode", "large_dnode", []string{"dnodesize=legacy"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			planFor := func(target string) Plan {
				s := stateOf(dataset(t, "tank/a", "@s,1", tt.source...))
				for f := range s.Source.Pool.Features {
					s.Source.Pool.Features[f] = "enabled"
				}
				s.Source.Pool.Features[tt.used] = "active"
				s.Target.Pool.Features[tt.missing] = target
				if target == "" {
					delete(s.Target.Pool.Features, tt.missing)
				}
				return mustMake(t, request(), s)
			}
			require.Empty(t, planFor("enabled").Conflicts)
			if !tt.want {
				require.Empty(t, planFor("disabled").Conflicts)
				return
			}
			requireConflict(t, planFor("disabled"), FeatureMissing, "beta:vault", tt.missing, "zpool set feature@"+tt.missing+"=enabled vault")
			requireConflict(t, planFor(""), FeatureMissing, "upgrade ZFS on beta")
		})
	}
	s := stateOf(dataset(t, "tank/a", "@s,1", encrypted))
	s.Target.Pool.Features = nil
	require.Empty(t, mustMake(t, request(), s).Conflicts, "unknown features are not checked")
}

func TestIVSets(t *testing.T) {
	t.Parallel()
	decrypt := request().with(func(r *Request) { r.Decrypt = true })
	state := func(source string) State {
		return stateOf(dataset(t, "tank/a", source, encrypted, unlocked), dataset(t, "vault/a", "@x,1", encrypted, unlocked))
	}
	tests := []struct {
		name           string
		req            Request
		source, target map[uint64]string
		refused        string
	}{
		{"equal", request(), map[uint64]string{1: "7"}, map[uint64]string{1: "7"}, ""},
		{"different", request(), map[uint64]string{1: "7"}, map[uint64]string{1: "8"}, "the raw chain is broken: alpha:tank/a@a and beta:vault/a@x"},
		{"unknown on the target", request(), map[uint64]string{1: "7"}, nil, ""},
		{"unknown on the source", request(), nil, map[uint64]string{1: "7"}, ""},
		{"unknown on both sides", decrypt, nil, nil, ""},
		{"decrypted onto its own", decrypt, map[uint64]string{1: "7"}, map[uint64]string{1: "8"}, ""},
		{"decrypted onto raw", decrypt, map[uint64]string{1: "7"}, map[uint64]string{1: "7"}, "beta:vault/a@x was received raw"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := state("@a,1 @b,2")
			p := mustMake(t, tt.req, s)
			source, target := NeedIVSets(p)
			require.Equal(t, []string{"tank/a@a"}, source)
			require.Equal(t, []string{"vault/a@x"}, target)
			s.SourceIVSets, s.TargetIVSets = tt.source, tt.target
			CheckIVSets(&p, s)
			if tt.refused == "" {
				require.Empty(t, p.Conflicts)
				return
			}
			requireConflict(t, p, IVSetMismatch, tt.refused)
			require.NotEmpty(t, p.Conflicts[0].Remedy)
		})
	}
	source, _ := NeedIVSets(mustMake(t, request(), state("#mark,1 @b,2")))
	require.Equal(t, []string{"tank/a#mark"}, source)
	for name, s := range map[string]State{
		"up to date":    state("@a,1"),
		"not encrypted": stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1")),
		"full":          stateOf(dataset(t, "tank/a", "@a,1", encrypted)),
	} {
		p := mustMake(t, request(), s)
		CheckIVSets(&p, s)
		require.Empty(t, p.Conflicts, name)
		source, target := NeedIVSets(p)
		require.Empty(t, source, name)
		require.Empty(t, target, name)
	}
}

// TestRawClones expects that a clone's raw stream continues its origin's chain.
func TestRawClones(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	state := func(target string) State {
		return stateOf(dataset(t, "tank/a", "@s,1", encrypted), dataset(t, "tank/a/c", "@t,2", encrypted, "origin=tank/a@s"), dataset(t, "vault/a", "@s,1", target))
	}
	p := mustMake(t, req, state(encrypted))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "clone tank/a@s>@t", stepsText(p.Datasets[1]))
	source, target := NeedIVSets(p)
	require.Equal(t, []string{"tank/a@s"}, source)
	require.Equal(t, []string{"vault/a@s"}, target)

	p = mustMake(t, req, state("encryption=off"))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "full @t", stepsText(p.Datasets[1]))
	require.Contains(t, notes(p), "differs from its origin's")
}
