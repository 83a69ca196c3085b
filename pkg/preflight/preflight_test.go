package preflight

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

func filesystem(name string, properties ...string) *zfs.Dataset {
	d := &zfs.Dataset{Name: name, Type: zfs.Filesystem, Properties: map[string]zfs.Property{}}
	for i := 0; i < len(properties); i += 2 {
		d.Properties[properties[i]] = zfs.Property{Value: properties[i+1], Source: "local"}
	}
	return d
}

func pool(name string, properties ...string) zfs.Pool {
	p := zfs.Pool{Name: name, Properties: map[string]string{"health": "ONLINE", "readonly": "off", "capacity": "40", "ashift": "12"}}
	for i := 0; i < len(properties); i += 2 {
		p.Properties[properties[i]] = properties[i+1]
	}
	return p
}

// validInput returns a full send of tank/a to vault/a, 1 GiB, without findings.
func validInput() Input {
	return Input{
		Source: Host{Name: "alpha", ZFS: "2.3.9-1", User: "root", Root: true},
		Target: Host{Name: "beta", ZFS: "2.3.9-1", User: "root", Root: true},
		SourceListing: zfs.Listing{
			Root: "tank/a", Pool: pool("tank"), Datasets: []*zfs.Dataset{filesystem("tank/a")},
		},
		TargetListing: zfs.Listing{
			Root: "vault/a", Pool: pool("vault"), Ancestors: []*zfs.Dataset{filesystem("vault", "available", "10737418240")},
		},
		Plan: plan.Plan{Datasets: []*plan.Dataset{{
			Source: "tank/a", Target: "vault/a", Steps: []plan.Step{step(1<<30, zfs.StreamFlags{Compressed: true})},
		}}},
	}
}

func step(bytes uint64, flags zfs.StreamFlags) plan.Step {
	return plan.Step{Kind: plan.Full, Bytes: bytes, Send: zfs.SendSpec{Flags: flags}}
}

func ids(findings []finding.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, fmt.Sprintf("%s %s@%s", f.Severity, f.ID, f.Host))
	}
	return out
}

func TestNoFindings(t *testing.T) {
	t.Parallel()
	require.Empty(t, Send(validInput()))
	require.NotNil(t, Send(validInput()), "an empty list in JSON")
}

func TestFindings(t *testing.T) {
	t.Parallel()
	raw := zfs.StreamFlags{Raw: true}
	tests := []struct {
		name   string
		change func(*Input)
		want   []string
		text   string // in the first finding
	}{
		{"target suspended", func(in *Input) { in.TargetListing.Pool = pool("vault", "health", "SUSPENDED") },
			[]string{"fail pool-health@beta"}, "zpool status -v vault"},
		{"source suspended", func(in *Input) { in.SourceListing.Pool = pool("tank", "health", "SUSPENDED") },
			[]string{"fail pool-health@alpha"}, "zpool status -v tank"},
		{"target read-only", func(in *Input) { in.TargetListing.Pool = pool("vault", "readonly", "on") },
			[]string{"fail pool-health@beta"}, "zpool export vault"},
		{"source read-only", func(in *Input) { in.SourceListing.Pool = pool("tank", "readonly", "on") }, nil, ""},
		{"degraded", func(in *Input) { in.TargetListing.Pool = pool("vault", "health", "DEGRADED") },
			[]string{"warn pool-health@beta"}, "degraded"},
		{"full", func(in *Input) { in.TargetListing.Pool = pool("vault", "capacity", "91") },
			[]string{"warn pool-full@beta"}, "91 % full"},
		{"as full as allowed", func(in *Input) { in.TargetListing.Pool = pool("vault", "capacity", "90") }, nil, ""},

		{"no space", func(in *Input) { in.Plan.Datasets[0].Steps[0].Bytes = 11 << 30 },
			[]string{"fail space@beta"}, "vault has 10 GiB available, but the transfer needs about 11 GiB"},
		{"just enough space", func(in *Input) { in.Plan.Datasets[0].Steps[0].Bytes = 10 << 30 }, nil, ""},
		{"size unknown", func(in *Input) { in.Plan.Datasets[0].Steps[0].Bytes = 0 }, nil, ""},
		{"available space unknown", func(in *Input) { in.TargetListing.Ancestors[0] = filesystem("vault", "available", "-") }, nil, ""},
		{"all steps count", func(in *Input) {
			in.Plan.Datasets[0].Steps = []plan.Step{step(6<<30, raw), step(6<<30, raw)}
		}, []string{"fail space@beta"}, "12 GiB"},
		{"all datasets count", func(in *Input) {
			in.Plan.Datasets[0].Steps[0].Bytes = 6 << 30
			in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank/a/b", Target: "vault/a/b", Steps: in.Plan.Datasets[0].Steps})
		}, []string{"fail space@beta"}, "12 GiB"},
		{"decompressed in transit", func(in *Input) { in.Plan.Datasets[0].Steps = []plan.Step{step(11<<30, zfs.StreamFlags{})} },
			[]string{"warn space@beta"}, "may need up to 11 GiB, or less: the target compresses the uncompressed stream"},
		{"a rollback may free space", func(in *Input) {
			in.Plan.Datasets[0].Steps[0].Bytes, in.Plan.Datasets[0].Loses = 11<<30, []string{"vault/a@x"}
		}, []string{"warn space@beta"}, ""},
		{"a quota of the parent", func(in *Input) {
			in.TargetListing.Ancestors = append(in.TargetListing.Ancestors, filesystem("vault/q", "available", "1000000"))
			in.Plan.Datasets[0].Target = "vault/q/a"
		}, []string{"fail space@beta"}, "vault/q has 977 KiB available"},
		{"a quota of the dataset", func(in *Input) {
			in.TargetListing.Datasets = []*zfs.Dataset{filesystem("vault/a", "available", "1000")}
		}, []string{"fail space@beta"}, "vault/a has 1000 B available"},
		{"one finding for a full pool", func(in *Input) {
			in.TargetListing.Ancestors[0] = filesystem("vault", "available", "2000")
			in.TargetListing.Datasets = []*zfs.Dataset{filesystem("vault/a", "available", "1000")}
		}, []string{"fail space@beta"}, "vault has"},

		{"not root", func(in *Input) {
			in.Source.User, in.Source.Root, in.Target.User, in.Target.Root = "ann", false, "ben", false
			in.Plan.Datasets[0].Steps[0].Receive.Set = map[string]string{"readonly": "on", "zxfer:stream": "c"}
		}, []string{"note permissions@alpha", "note permissions@beta"}, "zfs allow -u ann send tank/a"},
		{"not root on the target", func(in *Input) {
			in.Target.User, in.Target.Root = "ben", false
			in.Plan.Datasets[0].Steps[0].Receive.Set = map[string]string{"readonly": "on", "zxfer:stream": "c", "org.example:a": "b"}
		}, []string{"note permissions@beta"}, "zfs allow -u ben create,mount,readonly,receive:append,userprop vault"},
		{"not root, rolling back", func(in *Input) {
			in.Target.User, in.Target.Root = "ben", false
			in.TargetListing.Datasets = []*zfs.Dataset{filesystem("vault/a")}
			in.Plan.Datasets[0].Steps[0].Receive.Rollback = true
		}, []string{"note permissions@beta"}, "zfs allow -u ben create,mount,receive vault/a"},
		{"not root, with some permissions", func(in *Input) {
			in.Source.User, in.Source.Root, in.Target.User, in.Target.Root = "ann", false, "ben", false
			in.Source.Permitted = &zfs.Permitted{Here: []string{"send"}, Below: []string{"send"}}
			in.Target.Permitted = &zfs.Permitted{Here: []string{"create", "mount", "receive"}, Below: []string{"create", "mount"}}
		}, []string{"note permissions@beta"}, "zfs allow -u ben receive:append vault"},
		{"user unknown", func(in *Input) { in.Source.User, in.Source.Root = "", false }, nil, ""},

		{"raw", func(in *Input) { in.Plan.Datasets[0].Encrypted, in.Plan.Datasets[0].Steps[0].Send.Flags = true, raw },
			[]string{"note keys@beta"}, "to read it: zfs load-key vault/a"},
		{"a raw tree", func(in *Input) {
			in.Plan.Datasets = nil
			for _, name := range []string{"vault/a", "vault/a/b c", "vault/a/there", "vault/a/there/too"} {
				in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank", Target: name, Encrypted: true, Steps: []plan.Step{step(1, raw)}})
			}
			in.TargetListing.Datasets = []*zfs.Dataset{filesystem("vault/a/there", "encryptionroot", "vault/a/there"), filesystem("vault/a/there/too", "encryptionroot", "vault/a/there")}
		}, []string{"note keys@beta"}, "to read it: zfs load-key vault/a; zfs load-key 'vault/a/b c'; zfs load-key vault/a/there\n"},
		{"a large raw tree", func(in *Input) {
			in.Plan.Datasets = nil
			for i := range maxKeys + 1 {
				in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Target: fmt.Sprintf("vault/a/%d", i), Encrypted: true, Steps: []plan.Step{step(1, raw)}})
			}
		}, []string{"note keys@beta"}, "to read it: zfs load-key -r vault/a\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := validInput()
			tt.change(&in)
			found := Send(in)
			require.Equal(t, tt.want, ids(found))
			for _, f := range found {
				require.NotEmpty(t, f.Evidence)
				require.NotEmpty(t, f.Remedy)
			}
			if tt.text != "" {
				require.Contains(t, found[0].Summary+"\n"+found[0].Remedy+"\n", tt.text)
			}
		})
	}
}

// TestAllow expects that the delegated permissions are no more than the plan needs, as far as that
// release of ZFS can separate them.
func TestAllow(t *testing.T) {
	t.Parallel()
	encrypted := func(in *Input) { in.Plan.Datasets[0].Steps[0].Send.Flags.Raw = true }
	tests := []struct {
		name           string
		change         func(*Input)
		source, target string
		send, receive  string
		key            string // additional permissions for the target's key
	}{
		{"plain", func(*Input) {}, "2.4.4", "2.3.2", "send", "receive:append", ""},
		{"raw", encrypted, "2.4.4", "2.4.4", "send:raw", "receive:append", "send:raw"},
		{"raw, first version with send:raw", encrypted, "2.4.0", "2.3.1", "send:raw", "receive", "send"},
		{"raw, before", encrypted, "2.3.9", "2.1.11", "send", "receive", "send"},
		{"a raw range", func(in *Input) { encrypted(in); in.Plan.Datasets[0].Steps[0].Send.Through = []string{"x"} }, "2.4.1", "2.3.9-1", "send:raw", "receive:append", "send"},
		{"a raw range without support", func(in *Input) { encrypted(in); in.Plan.Datasets[0].Steps[0].Send.Through = []string{"x"} }, "2.4.0", "2.3.9", "send", "receive:append", "send"},
		{"raw and plain", func(in *Input) {
			encrypted(in)
			in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank/a/b", Target: "vault/a/b", Steps: []plan.Step{step(1, zfs.StreamFlags{})}})
		}, "2.4.4", "2.3.9", "send", "receive:append", "send"},
		{"rolled back", func(in *Input) { in.Plan.Datasets[0].Steps[0].Receive.Rollback = true }, "2.3.9", "2.3.9", "send", "receive", ""},
		{"unknown", encrypted, "", "git", "send", "receive", "send"},
	}
	for _, tt := range tests {
		in := validInput()
		tt.change(&in)
		in.Source.ZFS, in.Target.ZFS = tt.source, tt.target
		in.Source.User, in.Source.Root = "ann", false
		send, receive := tt.send, "create,mount,"+tt.receive
		if strings.HasPrefix(tt.name, "a raw range") {
			send = "hold," + send
		}
		want := []string{"# as root on alpha", "zfs allow -u ann " + send + " tank/a",
			"# as root on beta (USER: the account that zxfer runs as)", "zfs allow -u USER " + receive + " vault"}
		if tt.key != "" {
			want = append(want, "# as root on beta, only where its key is --append-only (USER: the account that zxfer runs as)", "zfs allow -u USER "+tt.key+" vault")
		}
		require.Equal(t, want, Allow(in), tt.name)
		has := &zfs.Permitted{Here: []string{"create", "hold", "mount", "receive", "send"}, Below: []string{"create", "hold", "mount", "receive", "send"}}
		in.Source.Permitted, in.Target.User, in.Target.Root, in.Target.Permitted = has, "ben", false, has
		require.Equal(t, []string{"# nothing is missing on alpha: ann has all permissions on tank/a that this transfer needs",
			"# nothing is missing on beta: ben has all permissions on vault that this transfer needs"}, Allow(in), tt.name)
		in.Source.Permitted, in.Target.User, in.Target.Root, in.Target.Permitted = nil, "", true, nil
		in.Target.Name = in.Source.Name
		require.Equal(t, []string{want[0], want[1], want[3]}, Allow(in), "%s: no key leads from a host to itself", tt.name)
	}
}

// TestUpToDate expects that no check prevents a run that has nothing to send.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	in := validInput()
	in.Plan.Datasets[0].Steps = nil
	in.TargetListing.Pool = pool("vault", "health", "SUSPENDED", "capacity", "99")
	in.Target.User, in.Target.Root = "ben", false
	in.Target.ZFS = "0.8.0"
	require.Empty(t, Send(in))
}

// TestUnreadableHost expects each check to report the facts that doctor could not read.
func TestUnreadableHost(t *testing.T) {
	t.Parallel()
	in := Input{Source: Host{Name: "alpha", System: &sysinfo.System{}}, Target: Host{Name: "beta", UnreadReason: "it is not for this key"}}
	found := slices.DeleteFunc(Doctor(in, func(string) bool { return false }), func(f finding.Finding) bool { return f.Host != "beta" })
	reading := slices.DeleteFunc(hostChecks(), func(c Check) bool { return c.host == nil })
	require.Len(t, found, len(reading))
	for i, f := range found {
		require.Equal(t, finding.Finding{ID: reading[i].ID, Host: "beta", Severity: finding.Note, Unchecked: true, Summary: "not checked: it is not for this key"}, f)
	}
	in.Target.UnreadReason = ""
	require.NotContains(t, strings.Join(ids(Doctor(in, func(string) bool { return false })), " "), "@beta")
}

// TestAgentCheck expects doctor to report why zxfer does not run on a host, and a send to omit it.
func TestAgentCheck(t *testing.T) {
	t.Parallel()
	in := Input{Source: Host{Name: "alpha"}, Target: Host{Name: "nas", NoAgent: "its system is FreeBSD", Lacking: []string{"copy devices"}}}
	found := Doctor(in, func(string) bool { return false })
	require.Len(t, found, 1)
	require.Equal(t, "agent nas its system is FreeBSD", found[0].ID+" "+found[0].Host+" "+found[0].Evidence)
	require.Contains(t, found[0].Summary, "cannot: copy devices")
	require.Empty(t, Send(in))
}

func TestBlocking(t *testing.T) {
	t.Parallel()
	found := []finding.Finding{{ID: "a", Severity: finding.Warn}, {ID: "b", Severity: finding.Fail}, {ID: "c", Severity: finding.Fail, Remedy: "mend it"}}
	block := Blocking(found, nil)
	require.Equal(t, []string{"fail b@", "fail c@"}, ids(block))
	require.Equal(t, "{{skip-check b}} skips this check", block[0].Remedy)
	require.Equal(t, "mend it\n{{skip-check c}} skips this check", block[1].Remedy)
	require.Equal(t, "mend it", found[2].Remedy, "of the report, which is shown with another hint")
	require.Equal(t, []string{"fail c@"}, ids(Blocking(found, []string{"b", "a"})))
	require.Empty(t, Blocking(found, []string{"b", "c"}))
}

// TestSkippable expects that findings of measurements may be skipped, and that conflicts of the
// plan may not.
func TestSkippable(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"link", "mtu", Space, plan.KeyChanged} {
		require.True(t, Skippable(id), id)
	}
	require.False(t, Skippable("plan"))
	require.False(t, Skippable("nonsense"))
}

func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range Checks() {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, c.ID)
		require.False(t, seen[c.ID], c.ID)
		seen[c.ID] = true
		require.NotEmpty(t, c.Title)
		require.Regexp(t, `^https://`, c.Docs)
	}
}

// TestDataErrors expects that data errors of a pool are reported with a remedy, next to other
// problems.
func TestDataErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, zfs string
		pool      sysinfo.Pool
		want      []string // remedies
	}{
		{"sound", "2.3.9-1", sysinfo.Pool{}, []string{""}},
		{"no copy is known", "2.3.9-1", sysinfo.Pool{Errors: 3}, []string{"zxfer heal -n tank HOST:COPY shows"}},
		{"copies are known", "2.2.0-1", sysinfo.Pool{Errors: 1, Known: "backup1:tank"}, []string{"zxfer heal -n backup1:tank shows"}},
		{"too old to heal", "2.1.11-1", sysinfo.Pool{Errors: 1, Known: "tank"}, []string{"zxfer restore --files"}},
		{"also degraded", "2.3.9-1", sysinfo.Pool{Errors: 1, Properties: map[string]string{"health": "DEGRADED"}},
			[]string{"zxfer heal -n tank HOST:COPY shows", "zpool status -v tank"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.pool.Name = "tank"
			found := pools(&sysinfo.System{ZFS: tt.zfs, Pools: []sysinfo.Pool{tt.pool}})
			require.Len(t, found, len(tt.want))
			for i, f := range found {
				require.Contains(t, remedy.Here(f.Remedy), tt.want[i])
				require.Equal(t, tt.want[i] == "", f.Severity == finding.OK)
			}
		})
	}
}

// planned returns the planning of n datasets.
func planned(t *testing.T, n int) func() {
	local := func(value string) zfs.Property { return zfs.Property{Value: value, Source: "local"} }
	var source []*zfs.Dataset
	for i := range n {
		source = append(source, &zfs.Dataset{
			Name: fmt.Sprintf("tank/a/%06d", i), Type: zfs.Filesystem, GUID: uint64(i + 1),
			Versions:   []zfs.Version{{Kind: zfs.Snapshot, Name: "x", GUID: uint64(n + i), CreateTXG: 5}},
			Properties: map[string]zfs.Property{"mountpoint": local("/a"), "quota": local("5")},
		})
	}
	state := plan.State{
		Source: zfs.Listing{Root: "tank/a", Datasets: source},
		Target: zfs.Listing{Root: "vault/a", Ancestors: []*zfs.Dataset{{Name: "vault", Type: zfs.Filesystem}}},
	}
	return func() {
		p := plan.Make(plan.Request{Source: "tank/a", Target: "vault/a", Recursive: true, CarryProperties: true}, state)
		require.Len(t, p.Datasets, n)
		require.Len(t, p.Notes, 1)
		require.Contains(t, p.Notes[0], fmt.Sprintf("mountpoint of tank/a/000000 and %d more", n-1))
	}
}

// checkedInput returns the check of a plan of n encrypted datasets whose receive was interrupted.
func checkedInput(t *testing.T, n int) func() {
	in := validInput()
	in.Plan.Datasets = nil
	for i := range n {
		name := fmt.Sprintf("a/%06d", i)
		in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank/" + name, Target: "vault/" + name, Encrypted: true,
			Discard: "requested", Steps: []plan.Step{{Kind: plan.Full, Bytes: 1}}})
		in.TargetListing.Datasets = append(in.TargetListing.Datasets, &zfs.Dataset{Name: "vault/" + name, Type: zfs.Filesystem,
			Properties: map[string]zfs.Property{"encryptionroot": {Value: "vault/" + name}, "receive_resume_token": {Value: "1-x"}}})
	}
	return func() {
		resumes := 0
		for _, f := range Send(in) {
			if f.ID == "resume" {
				resumes++
			}
		}
		require.Equal(t, n, resumes)
	}
}

// TestManyDatasets expects that neither the planner nor the checks search all datasets for each
// one.
func TestManyDatasets(t *testing.T) { //nolint:paralleltest // it measures processor time
	for name, prepare := range map[string]func(*testing.T, int) func(){"planned": planned, "checked": checkedInput} {
		t.Run(name, func(t *testing.T) {
			testenv.Linear(t, 1000, func(n int) func() { return prepare(t, n) })
		})
	}
}
