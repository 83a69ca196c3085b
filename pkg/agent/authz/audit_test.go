package authz

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestAuditCannotHideChanges expects that many other names do not keep an important
// name out of the audit log.
func TestAuditCannotHideChanges(t *testing.T) {
	t.Parallel()
	pad := strings.Repeat("p", 200)
	var versions, tagged []string
	marks := map[string]string{}
	through := []string{}
	for i := range 500 {
		name := fmt.Sprintf("%s%d", pad, i)
		versions = append(versions, "vault/a@"+name)
		tagged = append(tagged, "vault/a@"+name)
		marks["vault/a#"+name] = "vault/a@" + name
		through = append(through, name)
	}
	set := map[string]string{}
	for name := range allowedProperties(false) {
		set[name] = strings.Repeat("x", 32)
	}
	set[zfs.DirectionProperty] = "18446744073709551615-18446744073709551615"
	set["readonly"], set["canmount"], set["encryption"], set["compression"] = "on", "off", "off", "zstd-fast-1000"
	for _, c := range []struct {
		op   string
		args any
		want []string // each complete on one line
	}{
		{"snapshot", versions, quoted(versions)},
		{"destroy", versions, quoted(versions)},
		{"hold", hosts.Tagged{Tag: strings.Repeat("t", 255), Snapshots: tagged}, quoted(tagged)},
		{"release", hosts.Tagged{Tag: "zxfer:j", Snapshots: tagged}, quoted(tagged)},
		{"bookmark", marks, quoted(versions)},
		{"create-parents", "vault/a/b", []string{`"vault/a/b"`}},
		{"discard-partial", "vault/a/b", []string{`"vault/a/b"`}},
		{"transfer", hosts.Task{From: hosts.Accept{Session: "x"}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "vault/" + pad, Origin: "vault/o@" + pad, Set: set}}},
			[]string{`receive "vault/` + pad + `"`, `origin "vault/o@` + pad + `"`, `set "canmount=off"`, `"readonly=on"`}},
		{"transfer", hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: "vault/a", From: "@w", Through: through, To: "z"}}, To: hosts.Accept{Session: "x"}},
			append(quoted(through), `send "vault/a"`, `from "@w"`, `to "z"`)},
	} {
		var lines []string
		g := NewGuard(&Policy{Receive: []string{"vault"}, Send: []string{"vault"}}, vault(), func(l string) { lines = append(lines, l) })
		body, err := json.Marshal(c.args)
		require.NoError(t, err)
		_, err = admit(t, g, c.op, string(body))
		require.NoError(t, err, c.op)
		all := strings.Join(lines, "\n")
		for _, want := range c.want {
			require.Contains(t, all, want, c.op)
		}
		for i, line := range lines {
			require.LessOrEqual(t, len(line), maxLine, c.op)
			require.True(t, strings.HasPrefix(line, "admitted "+c.op), line)
			if len(lines) > 1 {
				require.Contains(t, line, fmt.Sprintf(" (%d/%d): ", i+1, len(lines)))
			}
			if h, ok := c.args.(hosts.Tagged); ok {
				require.Contains(t, line, quote(h.Tag), "each line names its tag")
			}
		}
	}
}

// vault is a host with a dataset.
func vault() *hosts.Local { return hosts.On(zfsmem.New("vault/a"), "test", func(string) {}) }

// TestTagLengthIsBounded expects a limited length of tags, because the audit log repeats a tag on every
// line.
func TestTagLengthIsBounded(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Send: []string{"vault"}}, nil, func(l string) { require.Less(t, len(l), maxLine) })
	for _, tag := range []string{"", strings.Repeat("t", 256), strings.Repeat("\x01", 200), strings.Repeat("t", 1<<20)} {
		for _, op := range []string{"hold", "release"} {
			body, err := json.Marshal(hosts.Tagged{Tag: tag, Snapshots: []string{"vault@x"}})
			require.NoError(t, err)
			_, err = admit(t, g, op, string(body))
			require.Equal(t, fault.Refused, fault.ClassOf(err))
		}
	}
}
