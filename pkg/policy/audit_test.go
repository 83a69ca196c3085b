package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// The one name that matters could be kept out of the audit by others before it.
func TestNothingThatIsChangedHidesFromTheAudit(t *testing.T) {
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
	for name := range taken() {
		set[name] = strings.Repeat("x", 32)
	}
	set["readonly"], set["canmount"], set["encryption"] = "on", "off", "off"
	for _, c := range []struct {
		op   string
		args any
		want []string // each on some line, whole
	}{
		{"snapshot", versions, quoted(versions)},
		{"destroy", versions, quoted(versions)},
		{"hold", hold{Tag: strings.Repeat("t", 255), Snapshots: tagged}, quoted(tagged)},
		{"release", hold{Tag: "zxfer:j", Snapshots: tagged}, quoted(tagged)},
		{"bookmark", marks, quoted(versions)},
		{"create-parents", "vault/a/b", []string{`"vault/a/b"`}},
		{"discard-partial", "vault/a/b", []string{`"vault/a/b"`}},
		{opTransfer, task{Receive: &receiveSpec{Target: "vault/" + pad, Origin: "vault/o@" + pad, Set: set}},
			[]string{`receive "vault/` + pad + `"`, `origin "vault/o@` + pad + `"`, `set "canmount=off"`, `"readonly=on"`}},
		{opTransfer, task{Send: &sendSpec{Dataset: "vault/a", From: "@w", Through: through, To: "z"}},
			append(quoted(through), `send "vault/a"`, `from "@w"`, `to "z"`)},
	} {
		var lines []string
		g := NewGuard(&Policy{Receive: []string{"vault"}, Send: []string{"vault"}}, anySite{}, func(l string) { lines = append(lines, l) })
		body, err := json.Marshal(c.args)
		require.NoError(t, err)
		_, err = g.Admit(t.Context(), c.op, body)
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
			if h, ok := c.args.(hold); ok {
				require.Contains(t, line, quote(h.Tag), "of which tag, each line tells")
			}
		}
	}
}

// anySite has what rules look for.
type anySite struct{ site.Site }

func (anySite) Properties(_ context.Context, names, _ []string) (map[string]map[string]zfs.Property, error) {
	out := map[string]map[string]zfs.Property{}
	for _, n := range names {
		out[n] = map[string]zfs.Property{"type": {Value: "filesystem"}, "encryption": {Value: "off"}}
	}
	return out, nil
}

// A tag would be on every line, and a line be lost for its length.
func TestATagIsBounded(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Send: []string{"vault"}}, nil, func(l string) { require.Less(t, len(l), maxLine) })
	for _, tag := range []string{"", strings.Repeat("t", 256), strings.Repeat("\x01", 200), strings.Repeat("t", 1<<20)} {
		for _, op := range []string{"hold", "release"} {
			body, err := json.Marshal(hold{Tag: tag, Snapshots: []string{"vault@x"}})
			require.NoError(t, err)
			_, err = g.Admit(t.Context(), op, body)
			require.Equal(t, fault.Refused, fault.ClassOf(err))
		}
	}
}

// What operations take, field by field: each is decided about here, by a rule or
// by its absence, which refuses.
func TestEveryFieldOfARequestIsDecidedAbout(t *testing.T) {
	t.Parallel()
	refused := map[string]string{"Task.device": "devices are not for restricted keys"}
	for _, c := range []struct{ theirs, ours any }{
		{site.ListQuery{}, listQuery{}}, {zfs.StreamFlags{}, streamFlags{}}, {zfs.SendSpec{}, sendSpec{}},
		{site.ContentQuery{}, contentQuery{}}, {zfs.Within{}, within{}}, {zfs.ReceiveSpec{}, receiveSpec{}}, {wire.Offer{}, offer{}}, {wire.Ticket{}, ticket{}},
		{transfer.Options{}, options{}}, {site.Task{}, task{}},
	} {
		theirs, ours := fields(c.theirs), fields(c.ours)
		for name := range theirs {
			key := reflect.TypeOf(c.theirs).Name() + "." + name
			require.True(t, ours[name] != (refused[key] != ""), "%s: write a rule for it in package policy, or say in this test why it is refused", key)
		}
		for name := range ours {
			require.True(t, theirs[name], "%T has %s, which nobody asks for", c.ours, name)
		}
	}
}

func fields(of any) map[string]bool {
	out := map[string]bool{}
	for i := range reflect.TypeOf(of).NumField() {
		f := reflect.TypeOf(of).Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.Anonymous {
			maps.Copy(out, fields(reflect.Zero(f.Type).Interface()))
		} else if name != "-" {
			out[name] = true
		}
	}
	return out
}
