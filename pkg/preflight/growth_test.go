package preflight

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// capturedPool parses a captured output of zpool get.
func capturedPool(t *testing.T, file string) zfs.Pool {
	t.Helper()
	b, err := os.ReadFile(testenv.Data(t, file))
	require.NoError(t, err)
	var rows []string
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "#") {
			rows = append(rows, line)
		}
	}
	p, err := zfs.ParsePool(strings.Join(rows, ""))
	require.NoError(t, err)
	return p
}

func spaceFindings(in Input) []finding.Finding {
	return slices.DeleteFunc(Send(in), func(f finding.Finding) bool { return f.ID != Space })
}

func TestPlanGrowth(t *testing.T) {
	t.Parallel()
	target := func(properties ...string) func(*Input) {
		return func(in *Input) {
			in.TargetListing.Ancestors[0] = filesystem("vault", append([]string{"available", "10737418240", "compression", "lz4"}, properties...)...)
		}
	}
	source := func(properties ...string) func(*Input) {
		return func(in *Input) { in.SourceListing.Datasets[0] = filesystem("tank/a", properties...) }
	}
	flags := func(f zfs.StreamFlags) func(*Input) {
		return func(in *Input) { in.Plan.Datasets[0].Steps[0].Send.Flags = f }
	}
	const gib = 1 << 30
	for _, tt := range []struct {
		name   string
		change func(*Input)
		bytes  uint64
		bound  Bound
		reason string // "" = none
	}{
		{"compressed", target(), gib, About, ""},
		{"raw", flags(zfs.StreamFlags{Raw: true}), gib, About, ""},
		{"uncompressed", flags(zfs.StreamFlags{}), gib, AtMost, "the target compresses the uncompressed stream"},
		{"uncompressed, and so on the target", func(in *Input) { flags(zfs.StreamFlags{})(in); target("compression", "off")(in) }, gib, About, ""},
		{"uncompressed on the source", func(in *Input) { target()(in); source("compression", "off")(in) }, gib, AtMost, "the target compresses blocks that the source stores uncompressed"},
		{"raw, uncompressed on the source", func(in *Input) {
			target()(in)
			source("compression", "off")(in)
			flags(zfs.StreamFlags{Raw: true})(in)
		}, gib, About, ""},
		{"uncompressed on both sides", func(in *Input) { target("compression", "off")(in); source("compression", "off")(in) }, gib, About, ""},
		{"two copies", target("copies", "2"), 2 * gib, About, "copies=2 on the target"},
		{"two copies by request", func(in *Input) { in.Plan.Datasets[0].Steps[0].Receive.Set = map[string]string{"copies": "2"} }, 2 * gib, About, "copies=2 on the target"},
		{"two copies of an existing copy", func(in *Input) {
			target("copies", "3")(in)
			in.TargetListing.Datasets = []*zfs.Dataset{filesystem("vault/a", "copies", "2")}
		}, 2 * gib, About, "copies=2 on the target"},
		{"impossible copies", target("copies", "9999999999"), gib, About, ""},
		{"no number of copies", target("copies", "x"), gib, About, ""},
		{"deduplicated", target("dedup", "sha512,verify"), gib, AtMost, "the target deduplicates"},
		{"not deduplicated", target("dedup", "off"), gib, About, ""},
		{"a rollback", func(in *Input) { in.Plan.Datasets[0].Loses = []string{"vault/a@x"} }, gib, AtMost, "the transfer first destroys data of the target"},
		{"larger sectors", func(in *Input) { in.SourceListing.Pool = pool("tank", "ashift", "9") }, gib, AtLeast, "the target has larger sectors (ashift 12, the source 9)"},
		{"unknown sectors", func(in *Input) { in.SourceListing.Pool = pool("tank", "ashift", "0") }, gib, About, ""},
		{"smaller sectors", func(in *Input) { in.SourceListing.Pool = pool("tank", "ashift", "13") }, gib, About, ""},
		{"dRAID", func(in *Input) {
			source("volblocksize", "8192")(in)
			in.TargetListing.Pool.Features = map[string]string{"draid": "active"}
		}, gib, AtLeast, "dRAID may pad blocks of 8.0 KiB"},
		{"dRAID, large blocks", func(in *Input) {
			source("recordsize", "131072")(in)
			in.TargetListing.Pool.Features = map[string]string{"draid": "active"}
		}, gib, About, ""},
		{"moved blocks", func(in *Input) {
			in.SourceListing.Pool = capturedPool(t, "zfs-2.4.4/zpool-get-rewritten-P.txt")
			in.Plan.Datasets[0].Steps[0].Kind = plan.Incremental
		}, gib, AtMost, "estimates count blocks that zfs rewrite -P moved, streams omit them"},
		{"moved blocks, full send", func(in *Input) {
			in.SourceListing.Pool = capturedPool(t, "zfs-2.4.4/zpool-get-rewritten-P.txt")
		}, gib, About, ""},
		{"rewritten blocks", func(in *Input) {
			in.SourceListing.Pool = capturedPool(t, "zfs-2.4.4/zpool-get-rewritten.txt")
			in.Plan.Datasets[0].Steps[0].Kind = plan.Incremental
		}, gib, About, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := validInput()
			tt.change(&in)
			g := PlanGrowth(&in)
			require.Equal(t, tt.bytes, g.Bytes)
			require.Equal(t, tt.bound, g.Bound)
			want := []string{}
			if tt.reason != "" {
				want = append(want, tt.reason)
			}
			require.Equal(t, want, g.Reasons)
			require.Zero(t, g.Unknown)
		})
	}
}

// TestPlanGrowthOfTree expects a sum without overflow, unknown sizes, reasons in both directions, and the space of
// the nearest existing dataset.
func TestPlanGrowthOfTree(t *testing.T) {
	t.Parallel()
	in := validInput()
	in.SourceListing.Pool = pool("tank", "ashift", "9")
	in.Plan.Datasets = append(in.Plan.Datasets,
		&plan.Dataset{Source: "tank/a/b", Target: "vault/a/b", Steps: []plan.Step{step(0, zfs.StreamFlags{}), step(1<<30, zfs.StreamFlags{Compressed: true})}},
		&plan.Dataset{Source: "tank/a/c", Target: "vault/a/c"})
	available := uint64(10737418240)
	require.Equal(t, &Growth{Bytes: 2 << 30, Bound: About, Unknown: 1, Target: "vault", Available: &available, Reasons: []string{
		"the target compresses the uncompressed stream", "the target has larger sectors (ashift 12, the source 9)"}}, PlanGrowth(&in))

	in.Plan.Datasets[1].Steps[0].Bytes = math.MaxUint64
	require.EqualValues(t, uint64(math.MaxUint64), PlanGrowth(&in).Bytes)
	require.Equal(t, []string{"warn space@beta"}, ids(spaceFindings(in)))

	in.TargetListing.Ancestors[0] = filesystem("vault", "available", "1", "refquota", "10")
	require.Nil(t, PlanGrowth(&in).Available, "a refquota does not limit descendants")
	in.Plan.Datasets = in.Plan.Datasets[2:]
	require.Nil(t, PlanGrowth(&in))
}

// TestRefquota expects that a refquota limits only its dataset. In the capture, pt/parent has 10461184 bytes available
// and a refquota of 10485760, and OpenZFS 2.3.9 received 63 MB into pt/parent/clones.
func TestRefquota(t *testing.T) {
	t.Parallel()
	limited := func(name string) *zfs.Dataset {
		return filesystem(name, "available", "10461184", "refquota", "10485760")
	}
	in := validInput()
	in.Plan.Datasets[0].Steps[0].Bytes, in.Plan.Datasets[0].Target = 63040368, "vault/parent/a"
	in.TargetListing.Ancestors = append(in.TargetListing.Ancestors, limited("vault/parent"))
	require.Empty(t, spaceFindings(in))
	in.Plan.Datasets[0].Target = "vault/parent"
	require.Equal(t, []string{"fail space@beta"}, ids(spaceFindings(in)))
	in.TargetListing.Ancestors[1] = filesystem("vault/parent", "available", "10461184", "refquota", "0", "quota", "10485760")
	in.Plan.Datasets[0].Target = "vault/parent/a"
	require.Equal(t, []string{"fail space@beta"}, ids(spaceFindings(in)))
}

// TestSpaceOfCopies expects that the check of the space and the stated growth agree.
func TestSpaceOfCopies(t *testing.T) {
	t.Parallel()
	in := validInput()
	in.Plan.Datasets[0].Steps[0].Bytes = 6 << 30
	require.Empty(t, spaceFindings(in))
	in.TargetListing.Ancestors[0] = filesystem("vault", "available", "10737418240", "copies", "2")
	found := spaceFindings(in)
	require.Equal(t, []string{"fail space@beta"}, ids(found))
	require.Contains(t, found[0].Summary, "vault has 10 GiB available, but the transfer needs about 12 GiB")
	require.Contains(t, found[0].Evidence, "with copies=2 on the target")
}

// TestSharedBlocks checks a captured pool in which 20 MiB were cloned twice, and 10 MiB deduplicated.
func TestSharedBlocks(t *testing.T) {
	t.Parallel()
	const cloned, dedup = "send streams repeat cloned blocks", "send streams repeat blocks that pool pc deduplicates (ratio 3.00), and the copy does not: tank/a"
	onSource := func(in *Input) { in.SourceListing.Datasets[0] = filesystem("tank/a", "dedup", "on") }
	for _, tt := range []struct {
		name   string
		change func(*Input)
		want   []string // starts of the summaries
	}{
		{"full send", func(*Input) {}, []string{cloned}},
		{"full send of deduplicated data", onSource, []string{cloned, dedup}},
		{"to a deduplicating target", func(in *Input) {
			onSource(in)
			in.TargetListing.Ancestors[0] = filesystem("vault", "dedup", "on")
		}, []string{cloned}},
		{"dedup requested", func(in *Input) {
			onSource(in)
			in.Plan.Datasets[0].Steps[0].Receive.Set = map[string]string{"dedup": "on"}
		}, []string{cloned}},
		{"no ratio", func(in *Input) {
			onSource(in)
			in.SourceListing.Pool.Properties["dedupratio"] = "NaN"
		}, []string{cloned}},
		{"increment", func(in *Input) { onSource(in); in.Plan.Datasets[0].Steps[0].Kind = plan.Incremental }, nil},
		{"size unknown", func(in *Input) { in.Plan.Datasets[0].Steps[0].Bytes = 0 }, []string{cloned}},
		{"less than 1 %", func(in *Input) { in.Plan.Datasets[0].Steps[0].Bytes = 5 << 30 }, nil},
		{"before 2.2", func(in *Input) { delete(in.SourceListing.Pool.Properties, "bclonesaved") }, nil},
		{"nothing to send", func(in *Input) { onSource(in); in.Plan.Datasets[0].Steps = nil }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := validInput()
			in.SourceListing.Pool = capturedPool(t, "zfs-2.3.9/zpool-get-shared.txt")
			tt.change(&in)
			found := slices.Concat(clones(&in), deduplicated(&in))
			require.Len(t, found, len(tt.want))
			for i, f := range found {
				require.True(t, strings.HasPrefix(f.Summary, tt.want[i]), f.Summary)
				require.Equal(t, finding.Note, f.Severity)
				require.NotEmpty(t, f.Remedy)
			}
		})
	}
	in := validInput()
	in.SourceListing.Pool = capturedPool(t, "zfs-2.3.9/zpool-get-shared.txt")
	found := slices.Concat(clones(&in), deduplicated(&in))
	require.Contains(t, found[0].Summary, "stores once: up to 40 MiB of this transfer")
	require.Contains(t, found[0].Evidence, "zpool get bclonesaved pc: 41943040")
	in.Plan.Datasets[0].Steps[0].Bytes = 1 << 20
	require.Contains(t, clones(&in)[0].Summary, "up to 1.0 MiB of")
}

// TestRewritten uses sizes captured from OpenZFS 2.4.4 after zfs rewrite of a file.
func TestRewritten(t *testing.T) {
	t.Parallel()
	const whole = "increments are about as large as the whole dataset, as after zfs rewrite without -P: tank/a"
	for _, tt := range []struct {
		name, zfs, pool string
		change          func(*Input)
		want, remedy    string // "" = no finding, and no remedy
	}{
		{"2.4", "2.4.4-1~bpo13+1", "zfs-2.4.4/zpool-get-rewritten.txt", nil, whole, "to rewrite files without such increments: zfs rewrite -P"},
		{"2.4 after -P", "2.4.4", "zfs-2.4.4/zpool-get-rewritten-P.txt", nil, "increments seem about as large as the whole dataset, but their streams omit", ""},
		{"2.4, feature disabled", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) { in.SourceListing.Pool.Features[physicalRewrite] = "disabled" },
			whole, "zpool set feature@physical_rewrite=enabled pc; then zfs rewrite -P"},
		{"2.3", "2.3.9", "zfs-2.3.9/zpool-get-shared.txt", nil, whole, "use zfs rewrite -P of OpenZFS 2.4"},
		{"before zfs rewrite", "2.3.3", "zfs-2.3.9/zpool-get-shared.txt", nil, "", ""},
		{"version unknown", "", "zfs-2.3.9/zpool-get-shared.txt", nil, "", ""},
		{"full send", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) { in.Plan.Datasets[0].Steps[0].Kind = plan.Full }, "", ""},
		{"uncompressed", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) { in.Plan.Datasets[0].Steps[0].Send.Flags = zfs.StreamFlags{} }, "", ""},
		{"volume", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) { in.SourceListing.Datasets[0].Type = zfs.Volume }, "", ""},
		{"half", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) {
			in.SourceListing.Datasets[0].Properties["referenced"] = zfs.Property{Value: "150000000"}
		}, "", ""},
		{"small", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) {
			in.SourceListing.Datasets[0].Properties["referenced"] = zfs.Property{Value: "100"}
			in.Plan.Datasets[0].Steps[0].Bytes = wholeIncrement - 1
		}, "", ""},
		{"referenced unknown", "2.4.4", "zfs-2.4.4/zpool-get-rewritten.txt", func(in *Input) { delete(in.SourceListing.Datasets[0].Properties, "referenced") }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := validInput()
			in.Source.ZFS, in.SourceListing.Pool = tt.zfs, capturedPool(t, tt.pool)
			in.SourceListing.Datasets[0] = filesystem("tank/a", "referenced", "73470976")
			in.Plan.Datasets[0].Steps[0].Kind, in.Plan.Datasets[0].Steps[0].Bytes = plan.Incremental, 73533168
			if tt.change != nil {
				tt.change(&in)
			}
			found := rewritten(&in)
			if tt.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0].Summary, tt.want)
			require.Contains(t, remedy.Here(found[0].Remedy), tt.remedy)
			require.Equal(t, tt.remedy == "", found[0].Remedy == "")
			require.Contains(t, found[0].Evidence, "zfs send -nvP: 73533168, zfs get referenced: 73470976")
		})
	}
}
