package plan

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// capturedToken returns a captured resume token, as text and parsed.
func capturedToken(t testing.TB, name string) (string, zfs.Token) {
	t.Helper()
	raw, err := os.ReadFile(testenv.Data(t, "zfs-2.3.9", "resume-tokens.txt"))
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); f[0] == name {
			require.Len(t, f, 3)
			token, err := zfs.ParseToken(f[2])
			require.NoError(t, err)
			return f[2], token
		}
	}
	require.FailNow(t, "no such token", name)
	return "", zfs.Token{}
}

// withTokenGUIDs replaces ONE and TWO in a history with the GUIDs of the token's stream.
func withTokenGUIDs(token zfs.Token, s string) string {
	one := token.FromGUID
	if one == 0 {
		one = token.ToGUID
	}
	return strings.NewReplacer("ONE", fmt.Sprint(one), "TWO", fmt.Sprint(token.ToGUID)).Replace(s)
}

func TestResume(t *testing.T) {
	t.Parallel()
	snapshot := func(s string) func(*Request) { return func(r *Request) { r.Snapshot = s } }
	const halfReceived = "inconsistent=1"
	tests := []struct {
		name    string
		token   string
		ask     func(*Request)
		source  string // history of tank/a, or of tank/e for raw tokens
		target  string
		props   []string // properties of the target
		want    string
		discard string
	}{
		{"full", "full", nil, "@one,ONE", "", []string{halfReceived}, "resume @one", ""},
		{"full, then the rest", "full", nil, "@one,ONE @b,2 @c,3", "", []string{halfReceived}, "resume @one, @one>@b>@c", ""},
		{"full, without history", "full", func(r *Request) { r.LatestOnly = true }, "@one,ONE @b,2 @c,3", "", []string{halfReceived}, "resume @one, @one>@c", ""},
		{"full, without history, of the last", "full", func(r *Request) { r.LatestOnly = true }, "@one,ONE", "", []string{halfReceived}, "resume @one", ""},
		{"incremental, without history, of the last", "incremental", func(r *Request) { r.LatestOnly = true }, "@one,ONE @two,TWO", "@one,ONE", nil, "resume @two", ""},
		{"an excluded snapshot", "full", func(r *Request) { r.ExcludeSnapshots = []string{"one"} }, "@one,ONE @b,2", "", []string{halfReceived}, "full @b", "@one is excluded"},
		{"an excluded snapshot named by --snapshot", "full", func(r *Request) { r.ExcludeSnapshots, r.Snapshot = []string{"one"}, "one" }, "@one,ONE @b,2", "", []string{halfReceived}, "resume @one", ""},
		{"older than the newest two", "full", func(r *Request) { r.Newest = 2 }, "@one,ONE @b,2 @c,3 @d,4", "", []string{halfReceived}, "resume @one, @one>@c, @c>@d", ""},
		{"one of the newest two", "incremental", func(r *Request) { r.Newest = 2 }, "@one,ONE @two,TWO @c,3", "@one,ONE", nil, "resume @two, @two>@c", ""},
		{"incremental", "incremental", nil, "@one,ONE @two,TWO", "@one,ONE", nil, "resume @two", ""},
		{"incremental, then the rest", "incremental", nil, "@one,ONE @two,TWO @c,3", "@one,ONE", nil, "resume @two, @two>@c", ""},
		{"the incremental source is only a bookmark now", "incremental", nil, "#one,ONE @two,TWO", "@one,ONE", nil, "resume @two", ""},
		{"raw", "raw", nil, "@one,ONE @b,2", "", []string{halfReceived, encrypted}, "resume @one, @one>@b", ""},
		{"raw incremental", "raw-incremental", nil, "@one,ONE @two,TWO", "@one,ONE", []string{encrypted}, "resume @two", ""},

		{"resume not wanted", "full", func(r *Request) { r.NoResume = true }, "@one,ONE", "", []string{halfReceived}, "full @one", "requested by {{no-resume}}"},
		{"its snapshot was destroyed", "full", nil, "@b,2", "", []string{halfReceived}, "full @b", "snapshot tank/a@one no longer"},
		{"its snapshot has another name", "full", nil, "@uno,ONE", "", []string{halfReceived}, "full @uno", "is now tank/a@uno"},
		{"its incremental source was destroyed", "incremental", nil, "@zero,5 @two,TWO", "@zero,5", nil, "@zero>@two", "its incremental source"},
		{"newer than requested", "incremental", snapshot("one"), "@zero,5 @one,ONE @two,TWO", "@zero,5", nil, "@zero>@one", "newer than the requested @one"},
		{"the target was rolled back", "incremental", nil, "@zero,5 @one,ONE @two,TWO", "@zero,5", nil, "@zero>@one>@two", "the target has changed since"},
		{"the target lost its changes with --rollback", "incremental", func(r *Request) { r.Rollback = true }, "@one,ONE @two,TWO", "@one,ONE", []string{"written=512"}, "-F @one>@two", "the target has changed since"},
		{"not raw", "decrypted", nil, "@one,ONE", "", []string{halfReceived, encrypted}, "full @one", "not raw"},
		{"raw, decryption requested", "raw", func(r *Request) { r.Decrypt = true }, "@one,ONE", "", []string{halfReceived, encrypted}, "full @one", "was raw"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text, token := capturedToken(t, tt.token)
			root := "tank/a"
			var props []string
			if strings.HasPrefix(token.ToName, "tank/e@") {
				root, props = "tank/e", []string{encrypted, unlocked}
			}
			counterpart := "vault" + strings.TrimPrefix(root, "tank")
			req := request().with(func(r *Request) { r.Source = root })
			if tt.ask != nil {
				tt.ask(&req)
			}
			d := onlyDataset(t, mustMake(t, req, stateOf(dataset(t, root, withTokenGUIDs(token, tt.source), props...),
				dataset(t, counterpart, withTokenGUIDs(token, tt.target), append(tt.props, "receive_resume_token="+text)...))))
			require.Equal(t, tt.want, stepsText(d))
			if tt.discard != "" {
				require.Contains(t, d.Discard, tt.discard)
				return
			}
			require.Empty(t, d.Discard)
			st := d.Steps[0]
			require.Equal(t, text, st.Send.Token)
			require.Equal(t, token.Bytes, st.Done)
			require.Equal(t, token.ToGUID, st.ToGUID)
			require.Equal(t, token.FromGUID, st.BaseGUID)
			require.Equal(t, token.FromGUID == 0, st.Send.From == "")
			_, to, _ := strings.Cut(token.ToName, "@")
			require.Equal(t, zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: to, GUID: token.ToGUID}}, Base: token.FromGUID, Raw: token.Flags.Raw, Resumed: true}, st.Receive.Arrival)
			if token.FromGUID == 0 {
				require.Equal(t, "on", st.Receive.Set["readonly"], "a first receive takes its properties again")
			} else {
				require.Empty(t, st.Receive.Set)
			}
			for _, later := range d.Steps[1:] {
				require.Equal(t, st.Send.Flags, later.Send.Flags, "the chain keeps its flags")
			}
			_, err := zfs.SendArgs(st.Send)
			require.NoError(t, err)
		})
	}
}

// TestForgedTokenSendsOnlySelected uses a malicious target, which presents every token that it can
// construct from the names and GUIDs of the source. It expects that zxfer resumes at most one
// snapshot that the patterns select, and then sends only snapshots that the request selects.
func TestForgedTokenSendsOnlySelected(t *testing.T) {
	t.Parallel()
	requests := map[string]func(*Request){
		"newest":   func(r *Request) { r.Newest = 2 },
		"since":    func(r *Request) { r.Since = time.Unix(4*3600, 0) },
		"both":     func(r *Request) { r.Newest, r.Since = 2, time.Unix(3*3600, 0) },
		"latest":   func(r *Request) { r.LatestOnly = true },
		"up to s3": func(r *Request) { r.Snapshot, r.Newest = "s3", 1 },
	}
	source := "@s1,11 @s2,12 @secret,13 @s3,14 @s4,15 @s5,16"
	for name, ask := range requests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := request().with(ask)
			req.ExcludeSnapshots = []string{"secret"}
			make := func(target *zfs.Dataset) *Dataset {
				datasets := []*zfs.Dataset{dataset(t, "tank/a", source)}
				if target != nil {
					datasets = append(datasets, target)
				}
				state := stateOf(datasets...)
				state.SourceCreated = map[string]time.Time{}
				for i, s := range []string{"s1", "s2", "secret", "s3", "s4", "s5"} {
					state.SourceCreated["tank/a@"+s] = time.Unix(int64(i+1)*3600, 0)
				}
				p := mustMake(t, req, state)
				if len(p.Conflicts) > 0 { // nothing is sent
					return &Dataset{}
				}
				return onlyDataset(t, p)
			}
			sent := func(d *Dataset) (names []string) {
				for _, st := range d.Steps {
					names = append(append(names, st.Send.Through...), st.Send.To)
				}
				return names
			}
			wanted := sent(make(nil))
			require.NotContains(t, wanted, "secret")
			for _, to := range []string{"s1,11", "s2,12", "secret,13", "s3,14", "s4,15", "s5,16", "s1,16", "secret,99", "s6,17"} {
				for _, from := range []uint64{0, 11, 12, 13, 14, 15} {
					snapshot, guid, _ := strings.Cut(to, ",")
					n, err := strconv.ParseUint(guid, 10, 64)
					require.NoError(t, err)
					text := zfstest.Token("tank/a@"+snapshot, n, from)
					history, props := "", []string{"inconsistent=1"}
					if from != 0 {
						history, props = fmt.Sprintf("@base,%d", from), nil
					}
					d := make(dataset(t, "vault/a", history, append(props, "receive_resume_token="+text)...))
					resumed := 0
					for i, st := range d.Steps {
						if st.Kind == Resume {
							require.Zero(t, i)
							require.Contains(t, source, "@"+st.Send.To+","+guid, "a snapshot with this name and GUID")
							resumed++
						}
					}
					names := sent(d)
					require.NotContains(t, names, "secret", "%s from %d", to, from)
					for _, name := range names[min(resumed, len(names)):] {
						require.Contains(t, wanted, name, "%s from %d: %v", to, from, names)
					}
				}
			}
		})
	}
}

// TestResumeFlags expects the recorded send flags for an interrupted send. Without a record, zxfer
// derives the large-block flag from the token.
func TestResumeFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ token, recorded, want string }{
		{"full", "Lec", "Lc"}, {"full", "", "Lc"}, {"small", "", "c"}, {"small", "c", "c"}, {"full", "w", "Lc"},
	} {
		text, token := capturedToken(t, tt.token)
		props := []string{"inconsistent=1", "receive_resume_token=" + text}
		if tt.recorded != "" {
			props = append(props, zfs.FlagsProperty+"="+tt.recorded)
		}
		d := onlyDataset(t, mustMake(t, request(), stateOf(dataset(t, "tank/a", withTokenGUIDs(token, "@one,ONE @b,2"), "recordsize=1048576"), dataset(t, "vault/a", "", props...))))
		require.Equal(t, "resume @one, @one>@b", stepsText(d))
		for _, st := range d.Steps {
			require.Equal(t, tt.want, flagString(st.Send.Flags), "%s recorded as %q", tt.token, tt.recorded)
		}
		require.Equal(t, tt.want, d.Steps[0].Receive.Set[zfs.FlagsProperty])
	}
}

// TestResumeClone resumes the interrupted stream of a clone, and expects it to be sent from the
// clone's origin.
func TestResumeClone(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "clone")
	state := stateOf(dataset(t, "tank/c", withTokenGUIDs(token, "@two,TWO @three,3"), "origin=tank/a@one"),
		dataset(t, "vault/c", "", "inconsistent=1", "origin=vault/a@one", "receive_resume_token="+text))
	req := Request{Source: "tank/c", Target: "vault"}
	d := onlyDataset(t, mustMake(t, req, state))
	require.Equal(t, "full @two, @two>@three", stepsText(d), "the origin is unknown")
	require.Contains(t, d.Discard, "its incremental source")

	state.SourceOrigins = map[string]uint64{"tank/a@one": token.FromGUID}
	d = onlyDataset(t, mustMake(t, req, state))
	require.Equal(t, "resume @two, @two>@three", stepsText(d))
	require.Equal(t, "tank/a@one", d.Steps[0].Send.From)
	require.Equal(t, "vault/a@one", d.Steps[0].Receive.Origin)
}

func TestInvalidToken(t *testing.T) {
	t.Parallel()
	state := stateOf(dataset(t, "tank/a", "@one,1"), dataset(t, "vault/a", "", "inconsistent=1", "receive_resume_token=1-bad"))
	d := onlyDataset(t, mustMake(t, request(), state))
	require.Equal(t, "full @one", stepsText(d))
	require.Contains(t, d.Discard, "resume token")
}

// TestUpToDateWithPartialState expects that unneeded partially received state is kept unless
// --no-resume is set.
func TestUpToDateWithPartialState(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "incremental")
	state := stateOf(dataset(t, "tank/a", withTokenGUIDs(token, "@one,ONE @two,TWO")), dataset(t, "vault/a", withTokenGUIDs(token, "@one,ONE"), "receive_resume_token="+text))
	one := request().with(func(r *Request) { r.Snapshot = "one" })
	p := mustMake(t, one, state)
	require.Empty(t, onlyDataset(t, p).Discard)
	require.Contains(t, notes(p), "has the state of an interrupted receive")
	require.NotEmpty(t, onlyDataset(t, mustMake(t, one.with(func(r *Request) { r.NoResume = true }), state)).Discard)
}

// TestResumeRefused expects that other conflicts also prevent a resume.
func TestResumeRefused(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "incremental")
	target := dataset(t, "vault/a", withTokenGUIDs(token, "@c,77 @one,ONE"), "receive_resume_token="+text)
	p := mustMake(t, request(), stateOf(dataset(t, "tank/a", withTokenGUIDs(token, "@one,ONE @two,TWO @c,3")), target))
	requireConflict(t, p, NameTaken, "@c exists on both sides")

	p = mustMake(t, request(), stateOf(dataset(t, "tank/a", withTokenGUIDs(token, "@one,ONE @two,TWO")),
		dataset(t, "vault/a", withTokenGUIDs(token, "@one,ONE"), "written=512", "receive_resume_token="+text)))
	requireConflict(t, p, Modified, "zfs rollback vault/a@one")
}

// TestResumeChecksTheTarget expects that a resumed stream requires the same key and features as a
// new one.
func TestResumeChecksTheTarget(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "raw-incremental")
	req := request().with(func(r *Request) { r.Source = "tank/e" })
	state := func(root string) State {
		return stateOf(dataset(t, "tank/e", withTokenGUIDs(token, "@one,ONE @two,TWO"), encrypted, unlocked, "encryptionroot=tank/e"),
			dataset(t, "vault/e", withTokenGUIDs(token, "@one,ONE"), encrypted, "encryptionroot="+root, zfs.FlagsProperty+"=w", "receive_resume_token="+text))
	}
	require.Equal(t, "resume @two", stepsText(onlyDataset(t, mustMake(t, req, state("vault/e")))))
	requireConflict(t, mustMake(t, req, state("vault")), KeyChanged, "from vault/e to vault:")
	s := state("vault/e")
	s.Target.Pool.Features["encryption"] = "disabled"
	requireConflict(t, mustMake(t, req, s), FeatureMissing, "encryption")
}

// TestResumeForeignTokens plans with tokens of sends that zxfer never runs.
func TestResumeForeignTokens(t *testing.T) {
	t.Parallel()
	const guid = 7
	half := func(flags ...string) State {
		return stateOf(dataset(t, "tank/a", "@one,7"), dataset(t, "vault/a", "", "inconsistent=1", "receive_resume_token="+zfstest.Token("tank/a@one", guid, 0, flags...)))
	}
	for _, flag := range []string{"savedok", "redact_snaps"} {
		d := onlyDataset(t, mustMake(t, request(), half(flag)))
		require.Equal(t, "full @one", stepsText(d), flag)
		require.Contains(t, d.Discard, "redacted or saved stream", flag)
	}
	p := mustMake(t, request(), half("embedok"))
	require.Equal(t, "resume @one", stepsText(onlyDataset(t, p)))
	require.Contains(t, notes(p), "started with zfs send -e")
	require.Empty(t, mustMake(t, request(), half()).Notes)
	volume := half("embedok")
	for _, d := range []*zfs.Dataset{volume.Source.Datasets[0], volume.Target.Datasets[0]} {
		d.Type = zfs.Volume
	}
	require.Empty(t, mustMake(t, request(), volume).Notes, "a volume has no extended attributes")
}

// TestResumeRestore expects that a restore does not resume into a mounted dataset, because it
// may have changed since.
func TestResumeRestore(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "incremental")
	req := request().with(func(r *Request) { r.Restore, r.Rollback = true, true })
	for mounted, discard := range map[string]string{"no": "", "yes": "the target is mounted"} {
		p := Make(req, stateOf(dataset(t, "tank/a", withTokenGUIDs(token, "@one,ONE @two,TWO")),
			dataset(t, "vault/a", withTokenGUIDs(token, "@one,ONE"), "mounted="+mounted, "receive_resume_token="+text)))
		require.Len(t, p.Datasets, 1)
		require.Equal(t, discard == "", p.Datasets[0].Discard == "", mounted)
		require.Contains(t, p.Datasets[0].Discard, discard)
	}
}

// TestResumePrefersTheSnapshot expects that if the incremental source exists as a snapshot and as a
// bookmark, the stream is sent from the snapshot.
func TestResumePrefersTheSnapshot(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "incremental")
	for _, versions := range []string{"#one,ONE @one,ONE @two,TWO", "@one,ONE #one,ONE @two,TWO"} {
		d := onlyDataset(t, mustMake(t, request(), stateOf(dataset(t, "tank/a", withTokenGUIDs(token, versions)),
			dataset(t, "vault/a", withTokenGUIDs(token, "@one,ONE"), "receive_resume_token="+text))))
		require.Equal(t, "@one", d.Steps[0].Send.From)
	}
}

// TestResumeSetsNoEncryption expects no encryption property for a resumed stream. As for an
// incremental send, zfs receive of 2.3.9 refuses "-o encryption", because the partially received
// dataset has its encryption already.
func TestResumeSetsNoEncryption(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "full")
	half := func(properties ...string) *zfs.Dataset {
		return dataset(t, "vault/a", "", append(properties, "inconsistent=1", "receive_resume_token="+text)...)
	}
	source := dataset(t, "tank/a", withTokenGUIDs(token, "@one,ONE @b,2"))
	req := request().with(func(r *Request) {
		r.Set = map[string]string{"encryption": "on", "keyformat": "raw", "keylocation": "file:///k", "atime": "off"}
	})
	d := onlyDataset(t, mustMake(t, req, stateOf(source, half(encrypted, unlocked))))
	require.Equal(t, "resume @one, @one>@b", stepsText(d))
	set := d.Steps[0].Receive.Set
	require.Equal(t, map[string]string{"readonly": "on", "canmount": "noauto", "atime": "off", zfs.FlagsProperty: set[zfs.FlagsProperty]}, set)

	d = onlyDataset(t, mustMake(t, req, stateOf(source, half("encryption=off"))))
	require.Equal(t, "full @one, @one>@b", stepsText(d))
	require.Contains(t, d.Discard, "its encryption differs from the requested one")
	require.Equal(t, "on", d.Steps[0].Receive.Set["encryption"])

	// An unencrypted dataset below an encrypted copy.
	below := stateOf(dataset(t, "tank", "@s,5", encrypted, locked), source, dataset(t, "vault/tank", "@s,5", encrypted, locked),
		&zfs.Dataset{Name: "vault/tank/a", Type: zfs.Filesystem, Properties: half("encryption=off").Properties})
	p := mustMake(t, Request{Source: "tank", Target: "vault/tank", Recursive: true}, below)
	require.Empty(t, p.Conflicts)
	require.Equal(t, "resume @one, @one>@b", stepsText(p.Datasets[1]))
	require.NotContains(t, p.Datasets[1].Steps[0].Receive.Set, "encryption")
}

// TestForgedTokens uses a malicious target that presents forged tokens. It expects a plan that
// sends from the start, resumes no stream of another dataset, and contains no forged numbers.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ token, discard string }{
		"of another dataset":                    {zfstest.Token("tank/secret@one", 1, 0), "is now tank/a@one"},
		"GUID of another dataset":               {zfstest.Token("tank/a@one", 77, 0), "no longer exists on the source"},
		"incremental source of another dataset": {zfstest.Token("tank/a@one", 1, 77), "its incremental source (GUID 77) no longer"},
		"name with a path":                      {zfstest.Token("tank/b/../a@one", 1, 0), "does not name a snapshot"},
		"name that controls the terminal":       {zfstest.Token("tank/a@one\x1b[2J", 1, 0), "does not name a snapshot"},
		"raw, of a plain dataset":               {zfstest.Token("tank/a@one", 1, 0, "rawok"), "was raw, but tank/a is not encrypted"},
		"partial":                               {zfstest.Token("tank/a@one", 1, 0, "savedok"), "redacted or saved"},
		"redacted":                              {zfstest.Token("tank/a@one", 1, 0, "book_redact_snaps"), "redacted or saved"},
		"bytes that overflow":                   {zfstest.TokenAt(1<<64-1, "tank/a@one", 1, 0), "more than"},
		"bytes that become negative":            {zfstest.TokenAt(1<<63, "tank/a@one", 1, 0), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := onlyDataset(t, mustMake(t, request(), stateOf(dataset(t, "tank/a", "@one,1 @two,2"),
				dataset(t, "vault/a", "", "inconsistent=1", "receive_resume_token="+tt.token))))
			require.Equal(t, "full @one, @one>@two", stepsText(d))
			require.Contains(t, d.Discard, tt.discard)
			for _, st := range d.Steps {
				require.Empty(t, st.Send.Token)
				require.Zero(t, st.Done)
			}
		})
	}
}
