package authz

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// TestAuditListsChanges expects the audit log to list everything that an admitted request changes, and
// nothing else.
func TestAuditListsChanges(t *testing.T) {
	t.Parallel()
	accept := hosts.Accept{Session: "s"}
	for name, tt := range map[string]struct {
		got  account
		of   string
		each []string
	}{
		"names":      {nameList(&[]string{"tank@a", "tank@\n"}), "", []string{`"tank@a"`, `"tank@\n"`}},
		"name":       {singleName(new("tank")), "", []string{`"tank"`}},
		"bookmarks":  {bookmarkNames(&map[string]string{"t#b": "t@b", "t#a": "t@a"}), "", []string{`"t#a" of "t@a"`, `"t#b" of "t@b"`}},
		"holds":      {holdNames(&hosts.Tagged{Tag: "t", Snapshots: []string{"tank@a"}}), `"t"`, []string{`"tank@a"`}},
		"renamed":    {divergedNames(&[]zfs.DivergedCopy{{Dataset: "v/a", As: "v/b"}}), "", []string{`"v/a" as "v/b"`}},
		"followed":   {renamedNames(&[]zfs.RenamedCopy{{Dataset: "v/a", As: "v/b"}}), "", []string{`"v/a" as "v/b"`}},
		"removed":    {orphanNames(&[]zfs.Orphan{{Dataset: "v/a", Tag: "t"}}), "", []string{`"v/a" of "t"`}},
		"drill":      {drillSnapshotName(&zfs.DrillClone{Snapshot: "v@a"}), "", []string{`"v@a"`}},
		"drill ends": {drillDatasetNames(&zfs.DrillClones{Datasets: []string{"v/a"}}), "", []string{`"v/a"`}},
		"adjustment": {propertyNames(&zfs.PropertyChange{Dataset: "v", Set: map[string]string{"b": "2", "a": "1"}, Revert: []string{"c"}}), `"v"`,
			[]string{`set "a=1"`, `set "b=2"`, `revert "c"`}},
		"a send": {transferNames(&hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: "t", To: "b"}}, To: accept}), "", []string{`send "t"`, `to "b"`}},
		"a raw send": {transferNames(&hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: "t", From: "@a", To: "b", Flags: zfs.StreamFlags{Raw: true}}}, To: accept}), "",
			[]string{`send "t"`, `from "@a"`, `to "b"`, "raw"}},
		"a resumed send": {transferNames(&hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: "t", Token: "1-2"}}, To: accept}), "",
			[]string{`send "t"`, `to ""`, "the rest of an interrupted stream"}},
		"a receive": {transferNames(&hosts.Task{From: accept, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "v"}}}), "", []string{`receive "v"`}},
		"a corrective receive": {transferNames(&hosts.Task{From: accept, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "v", Corrective: true, Rollback: true}}}), "",
			[]string{`receive "v"`, "corrective", "rollback"}},
		"files": {transferNames(&hosts.Task{From: hosts.SendFiles{Archive: files.Archive{Snapshot: "t@a", Paths: []string{"x"}}}, To: accept}), "",
			[]string{`send files of "t@a"`, `"x"`}},
	} {
		require.Equal(t, account{prefix: tt.of, items: tt.each}, tt.got, name)
	}
}

// TestAuditLines expects that audit lines are filled up to their limit, and that a longer text
// is split.
func TestAuditLines(t *testing.T) {
	t.Parallel()
	const head = "admitted op"
	room := maxLine - len(head) - len(" (9999/9999): ")
	half := strings.Repeat("a", (room-1)/2)
	rest := room - 1 - len(half)
	for name, tt := range map[string]struct {
		each, want []string
	}{
		"nothing":      {nil, []string{": nothing"}},
		"one":          {[]string{"x"}, []string{": x"}},
		"on one line":  {[]string{"x", "y"}, []string{": x y"}},
		"a full line":  {[]string{half, strings.Repeat("b", rest)}, []string{": " + half + " " + strings.Repeat("b", rest)}},
		"one too many": {[]string{half, strings.Repeat("b", rest+1)}, []string{" (1/2): " + half, " (2/2): " + strings.Repeat("b", rest+1)}},
		"full":         {[]string{strings.Repeat("c", room), "d"}, []string{" (1/2): " + strings.Repeat("c", room), " (2/2): d"}},
		"long":         {[]string{strings.Repeat("c", room) + "d"}, []string{" (1/2): " + strings.Repeat("c", room), " (2/2): d"}},
	} {
		var lines []string
		NewGuard(&Policy{}, nil, func(l string) { lines = append(lines, strings.TrimPrefix(l, head)) }).logAdmitted("op", account{items: tt.each})
		require.Equal(t, tt.want, lines, name)
	}
}

// TestAuditRefusals expects that a refusal is logged with its cause and the start of the
// request, but never with a secret.
func TestAuditRefusals(t *testing.T) {
	t.Parallel()
	zero := func(g *Guard, q Request) error {
		_, err := rule[string]{}.admit(t.Context(), g, q)
		return err
	}
	names := func(g *Guard, q Request) error {
		_, err := changes(mayDestroy, nameList).admit(t.Context(), g, q)
		return err
	}
	long := `["` + strings.Repeat("x", 2*maxRefused) + `"]`
	for name, tt := range map[string]struct {
		do   func(*Guard, Request) error
		q    Request
		want string // "..." = more follows
	}{
		"no rule":   {zero, Request{Op: "new", Body: json.RawMessage("{}")}, `refused "new": no rule allows the operation \"new\": {}`},
		"long name": {zero, Request{Op: strings.Repeat("o", 65)}, `refused "` + strings.Repeat("o", 64) + `": no rule allows the operation \"` + strings.Repeat("o", 64) + `\": `},
		"never": {func(g *Guard, q Request) error {
			_, err := never[string]("not for this key").admit(t.Context(), g, q)
			return err
		}, Request{Op: "key", Body: json.RawMessage(`"k"`)}, `refused "key": not for this key: \"k\"`},
		"secret": {zero, Request{Op: "key", Body: json.RawMessage("hush"), Secret: true}, `refused "key": no rule allows the operation \"key\": (not shown)`},
		"not read": {func(g *Guard, q Request) error {
			g.LogRefusedUnread(q.Op, errors.New("too\nlong"))
			return g.refusal(errors.New("too long"))
		}, Request{Op: "list"}, `refused "list": too\nlong`},
		"long request": {names, Request{Op: "destroy", Body: json.RawMessage(long)}, "..."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			g := NewGuard(&Policy{}, nil, func(l string) { lines = append(lines, l) })
			require.Equal(t, fault.Refused, fault.ClassOf(tt.do(g, tt.q)))
			require.Len(t, lines, 1)
			if tt.want == "..." {
				require.True(t, strings.HasSuffix(lines[0], `: "`+strings.Repeat("x", maxRefused-1)+"..."), lines[0])
			} else {
				require.Equal(t, tt.want, lines[0])
			}
		})
	}
	require.Equal(t, strings.Repeat("x", maxRefused), clean(strings.Repeat("x", maxRefused+1)))
	require.Equal(t, strings.Repeat(`\n`, maxRefused/2)+"...", clean(strings.Repeat("\n", maxRefused)))
	require.Equal(t, "ab", clip("ab", 2))
}

// TestVerbs expects the verbs of grants in the order of the help.
func TestVerbs(t *testing.T) {
	t.Parallel()
	var verbs []string
	for _, g := range AllGrants() {
		verbs = append(verbs, g.Verb)
	}
	require.Equal(t, []string{"receive", "receive-rekey", "restore", "send", "send-decrypted", "heal", "drill", "rotate", "follow", "remove"}, verbs)
}

// TestAdmittedArguments expects Admit to return the arguments that the rule checked.
func TestAdmittedArguments(t *testing.T) {
	t.Parallel()
	args, err := admit(t, NewGuard(&Policy{Receive: []string{"vault"}}, vault(), func(string) {}), "destroy", `["vault/a@x"]`)
	require.NoError(t, err)
	require.Equal(t, []string{"vault/a@x"}, args)
}

// TestAuditLogsLaterFailure expects an audit line if an admitted request that changes
// something fails later.
func TestAuditLogsLaterFailure(t *testing.T) {
	t.Parallel()
	var lines []string
	g := NewGuard(&Policy{}, nil, func(l string) { lines = append(lines, l) })
	task := hosts.Task{From: hosts.Accept{}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "v/a"}}}
	gate := fmt.Errorf("beta: %w", &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Subject: "v/a", Detail: "the stream is not what was planned: a\npackage"})
	g.LogFailed(Request{Op: "transfer"}, task, gate)
	g.LogFailed(Request{Op: "transfer"}, task, errors.New("the link\x1b ended"))
	g.LogFailed(Request{Op: "destroy"}, []string{"v@a", strings.Repeat("x", 2*maxRefused)}, errors.New(strings.Repeat("y", 2*maxRefused)))
	g.LogFailed(Request{Op: "list"}, hosts.ListQuery{}, errors.New("no such dataset"))
	require.Len(t, lines, 3, "the last one changes nothing")
	require.Regexp(t, `^refused transfer after admission: beta: .*the stream is not what was planned: a\\npackage: receive "v/a"$`, lines[0])
	require.Equal(t, `failed transfer: the link\x1b ended: receive "v/a"`, lines[1])
	require.Less(t, len(lines[2]), maxLine)
}
