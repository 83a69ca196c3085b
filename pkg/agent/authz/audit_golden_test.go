package authz

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestGoldenAudit compares the lines that a restricted key leaves in the audit log with their golden copy: each
// operation admitted and refused.
func TestGoldenAudit(t *testing.T) {
	t.Parallel()
	var lines []string
	admit := func(grant string, op hosts.Operation, args any) {
		h := zfsmem.New("vault", "vault/web", "tank/other")
		h.Create("vault/web@s", nil)
		p, err := Parse(strings.Fields(grant), nil, false)
		require.NoError(t, err)
		body, err := json.Marshal(args)
		require.NoError(t, err)
		lines = append(lines, "-- "+grant+": "+op.Name())
		_, err = NewGuard(p, hosts.On(h, "test", func(string) {}), func(l string) { lines = append(lines, l) }).
			Admit(t.Context(), Request{Op: op.Name(), Body: json.RawMessage(body)})
		if err != nil {
			lines = append(lines, "error: "+err.Error())
		}
	}
	for _, c := range []struct {
		grant string
		op    hosts.Operation
		args  func(dataset string) any
	}{
		{"receive", hosts.OpSnapshot, func(d string) any { return []string{d + "@new"} }},
		{"send", hosts.OpSnapshot, func(d string) any { return []string{d + "@new"} }},
		{"receive", hosts.OpHold, func(d string) any { return hosts.Tagged{Tag: "zxfer:home:near", Snapshots: []string{d + "@s"}} }},
		{"receive", hosts.OpRelease, func(d string) any { return hosts.Tagged{Tag: "zxfer:home:near", Snapshots: []string{d + "@s"}} }},
		{"send", hosts.OpBookmark, func(d string) any { return map[string]string{d + "#s": d + "@s"} }},
		{"receive", hosts.OpDestroy, func(d string) any { return []string{d + "@s"} }},
		{"receive", hosts.OpCreateParents, func(d string) any { return d + "/a" }},
		{"receive", hosts.OpDiscardPartial, func(d string) any { return d }},
		{"receive", hosts.OpSetProperties, func(d string) any {
			return zfs.PropertyChange{Dataset: d, Set: map[string]string{"readonly": "on"}}
		}},
		{"receive=vault rotate", hosts.OpRenameDiverged, func(d string) any {
			return []zfs.DivergedCopy{{Dataset: d, GUID: 1, As: d + ".zxfer-2026-11-23T10-15-00Z"}}
		}},
		{"send", hosts.OpTransfer, func(d string) any {
			return hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: d, From: "@r", To: "s"}}, To: hosts.Accept{Session: "x"}}
		}},
		{"receive", hosts.OpTransfer, func(d string) any {
			return hosts.Task{From: hosts.Accept{Session: "x"}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: d + "/new", Set: map[string]string{"readonly": "on"}}}}
		}},
	} {
		for _, d := range []string{"vault/web", "tank/other"} {
			admit(c.grant+"=vault", c.op, c.args(d))
		}
	}
	testenv.Golden(t, filepath.Join("testdata", "audit.golden"), strings.Join(lines, "\n")+"\n")
}
