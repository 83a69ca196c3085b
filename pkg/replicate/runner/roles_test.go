package runner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/zfs"
)

// TestHostileOrigin promotes copies whose record of the source another host forged.
func TestHostileOrigin(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ root, child, want string }{
		"system directory":       {`{"set":{"mountpoint":"/etc/cron.d"}}`, "", "outside of the directories that this host permits"},
		"root":                   {`{"set":{"mountpoint":"/"}}`, "", "outside of the directories that this host permits"},
		"hidden directory":       {`{"set":{"mountpoint":"/srv/x/.ssh"}}`, "", "outside of the directories"},
		"login":                  {`{"set":{"mountpoint":"/home/alice"}}`, "", "outside of the directories"},
		"cloud-init":             {`{"set":{"mountpoint":"/var/lib/cloud/scripts/per-boot"}}`, "", "outside of the directories"},
		"system extension":       {`{"set":{"mountpoint":"/var/lib/extensions"}}`, "", "outside of the directories"},
		"configuration":          {`{"set":{"mountpoint":"/var/lib/confexts"}}`, "", "outside of the directories"},
		"programs":               {`{"set":{"mountpoint":"/opt/bin"}}`, "", "outside of the directories"},
		"EFI system partition":   {`{"set":{"mountpoint":"/efi"}}`, "", "outside of the directories"},
		"/srv itself":            {`{"set":{"mountpoint":"/srv"}}`, "", "outside of the directories"},
		"similar name":           {`{"set":{"mountpoint":"/srvx/a"}}`, "", "outside of the directories"},
		"dots":                   {`{"set":{"mountpoint":"/data/../etc"}}`, "", "not a clean path"},
		"child":                  {`{"set":{"mountpoint":"/data"}}`, `{"set":{"mountpoint":"/usr/bin"}}`, "outside of the directories that this host permits"},
		"twice":                  {`{"set":{"mountpoint":"/data"}}`, `{"set":{"mountpoint":"/data"}}`, "have the mountpoint"},
		"another dataset":        {`{"set":{"mountpoint":"/srv/taken"}}`, "", "it is the mountpoint of dst/other"},
		"another property":       {`{"set":{"mountpoint":"/data","setuid":"on"}}`, "", "unexpected property setuid"},
		"unknown field":          {`{"x":1}`, "", "did not write"},
		"not JSON":               {`x`, "", "did not write"},
		"invalid value":          {`{"set":{"readonly":"maybe"}}`, "", "readonly=maybe"},
		"no mountpoint":          {`{}`, "", "has no mountpoint"},
		"two values":             {`{} {}`, "", "did not write"},
		"too long":               {`{"source":"` + strings.Repeat("x", 7000) + `"}`, "", "bytes"},
		"control character":      {"{\"source\":\"a\\u001b[2J\",\"set\":{\"mountpoint\":\"/data\"}}", "", "not a printable line"},
		"mountpoint is no path":  {`{"set":{"mountpoint":"data"}}`, "", "mountpoint=data"},
		"name with a line break": {`{"job":"a\nb"}`, "", "not a valid name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRolePair(t)
			require.NoError(t, p.runJob(t, "home"))
			p.Create("dst/other", map[string]string{"mountpoint": "/srv/taken", "canmount": "on", "keystatus": "unavailable"})
			p.Set("dst/copy/a", zfs.OriginProperty, tt.root)
			if tt.child != "" {
				p.Set("dst/copy/a/c", zfs.OriginProperty, tt.child)
			}
			p.away = "src"
			_, err := p.doPromote(t, failover.Options{})
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			require.ErrorContains(t, err, tt.want)
			require.NotEmpty(t, fault.HintOf(err))
			require.Empty(t, p.writable()[2:])
			require.Empty(t, p.role(t, "dst/copy/a").Kind)
		})
	}
}

// TestContradictoryRoles expects that run, promote and switch are refused without a change.
func TestContradictoryRoles(t *testing.T) {
	t.Parallel()
	role := func(kind zfs.RoleKind, id string) string {
		r := zfs.Role{Kind: kind, ID: strings.Repeat(id, 16), Job: "home", Target: "near"}
		r.Since = r.Since.AddDate(2000, 0, 0)
		return r.String()
	}
	for name, tt := range map[string]struct{ source, target string }{
		"two sources":          {role(zfs.RoleSource, "1"), role(zfs.RoleSource, "2")},
		"another ID":           {role(zfs.RoleStandby, "1"), role(zfs.RoleSource, "2")},
		"a copy hands over":    {"", role(zfs.RoleHandover, "1")},
		"source and standby":   {role(zfs.RoleSource, "1"), role(zfs.RoleStandby, "2")},
		"a value by hand":      {"", "source"},
		"an unknown role":      {"", strings.Replace(role(zfs.RoleSource, "1"), "source", "boss", 1)},
		"a forged source role": {"x\x1b[2J", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRolePair(t)
			require.NoError(t, p.runJob(t, "home"))
			for n, value := range map[string]string{"src/a": tt.source, "dst/copy/a": tt.target} {
				if value != "" {
					p.Set(n, zfs.RoleProperty, value)
				}
			}
			taken, copies := len(p.names("src/a")), p.state()["dst/copy/a"]
			err := p.runJob(t, "home") // the snapshots of the source do not wait for the copy
			require.Equal(t, len(p.names("src/a")) == taken, fault.ClassOf(err) == fault.Refused, "%v", err)
			require.Equal(t, copies, p.state()["dst/copy/a"])
			before := fmt.Sprint(p.state(), p.Get("src/a", zfs.RoleProperty), p.Get("dst/copy/a", zfs.RoleProperty), p.writable())
			errs := map[string]error{"run": p.runJob(t, "home")}
			_, errs["promote"] = p.doPromote(t, failover.Options{SourceAlive: true})
			_, errs["switch"] = p.doSwitch(t, "home", failover.Options{})
			_, errs["abort"] = p.doSwitch(t, "home", failover.Options{Abort: true})
			for verb, err := range errs {
				require.Equal(t, fault.Refused, fault.ClassOf(err), "%s: %v", verb, err)
				require.NotEmpty(t, fault.HintOf(err), verb)
				require.NotContains(t, err.Error()+fault.HintOf(err), "\x1b")
			}
			require.Equal(t, before, fmt.Sprint(p.state(), p.Get("src/a", zfs.RoleProperty), p.Get("dst/copy/a", zfs.RoleProperty), p.writable()))
		})
	}
}
