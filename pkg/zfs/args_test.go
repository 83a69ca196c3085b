package zfs

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSendArgs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		spec SendSpec
		want string // result of CommandLine, or text in the error
		ok   bool
	}{
		{"full", SendSpec{Dataset: "tank/a", To: "x"}, "send tank/a@x", true},
		{"raw", SendSpec{Dataset: "tank/a", To: "x", Flags: StreamFlags{Raw: true}}, "send -w tank/a@x", true},
		{"flags", SendSpec{Dataset: "tank/a", To: "x", Flags: StreamFlags{LargeBlocks: true, Embedded: true, Compressed: true}}, "send -L -e -c tank/a@x", true},
		{"incremental", SendSpec{Dataset: "tank/a", From: "@w", To: "x"}, "send -i @w tank/a@x", true},
		{"bookmark", SendSpec{Dataset: "tank/a", From: "#w", To: "x"}, "send -i '#w' tank/a@x", true},
		{"clone", SendSpec{Dataset: "tank/c", From: "tank/a@w", To: "x"}, "send -i tank/a@w tank/c@x", true},
		{"range", SendSpec{Dataset: "tank/a", From: "@u", Through: []string{"v", "w"}, To: "x"}, "send -I @u tank/a@x", true},
		{"range of a clone", SendSpec{Dataset: "tank/c", From: "tank/a@w", Through: []string{"v"}, To: "x"}, "send -I tank/a@w tank/c@x", true},
		{"spaces", SendSpec{Dataset: "tank/a b", To: "x y"}, "send 'tank/a b@x y'", true},
		{"resume", SendSpec{Dataset: "tank/a", To: "x", From: "@w", Flags: StreamFlags{Raw: true}, Token: "1-ab-c-d0"}, "send -t 1-ab-c-d0", true},
		{"range from a bookmark", SendSpec{Dataset: "tank/a", From: "#u", Through: []string{"v"}, To: "x"}, "bookmark", false},
		{"full with intermediate snapshots", SendSpec{Dataset: "tank/a", Through: []string{"v"}, To: "x"}, "full", false},
		{"no snapshot", SendSpec{Dataset: "tank/a"}, "snapshot", false},
		{"bad incremental source", SendSpec{Dataset: "tank/a", From: "w", To: "x"}, "snapshot", false},
		{"bad name of an incremental source", SendSpec{Dataset: "tank/a", From: "@w%", To: "x"}, "%", false},
		{"bad intermediate snapshot", SendSpec{Dataset: "tank/a", From: "@u", Through: []string{"a/b"}, To: "x"}, "'/'", false},
		{"bad token", SendSpec{Token: "-R"}, "token", false},
		{"bad token's characters", SendSpec{Token: "1-ab c"}, "token", false},
	} {
		args, err := SendArgs(test.spec)
		if !test.ok {
			require.ErrorContains(t, err, test.want, test.name)
			continue
		}
		require.NoError(t, err, test.name)
		require.Equal(t, test.want, CommandLine(args), test.name)
		estimate, err := EstimateArgs(test.spec)
		require.NoError(t, err)
		require.Equal(t, strings.Replace(test.want, "send", "send -nvP", 1), CommandLine(estimate))
	}
}

func TestReceiveArgs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		spec ReceiveSpec
		want string
		ok   bool
	}{
		{"bare", ReceiveSpec{Target: "vault/a"}, "receive -s -u vault/a", true},
		{"all", ReceiveSpec{Target: "vault/a", Rollback: true, Origin: "vault/o@x",
			Set: map[string]string{"readonly": "on", "canmount": "noauto", "org:note": "it's"}},
			`receive -s -u -F -o origin=vault/o@x -o canmount=noauto -o 'org:note=it'\''s' -o readonly=on vault/a`, true},
		{"bad target", ReceiveSpec{Target: "-F"}, "letter", false},
		{"snapshot", ReceiveSpec{Target: "vault/a@x"}, "snapshot", false},
		{"bad origin", ReceiveSpec{Target: "vault/a", Origin: "vault/o"}, "origin", false},
		{"origin by -o", ReceiveSpec{Target: "vault/a", Set: map[string]string{"origin": "x"}}, "origin", false},
		{"bad property", ReceiveSpec{Target: "vault/a", Set: map[string]string{"a=b": "x"}}, "property", false},
		{"value with a newline", ReceiveSpec{Target: "vault/a", Set: map[string]string{"a:b": "x\nvault/x\t/root/.ssh\ton"}}, "one printable line", false},
		{"mountpoint with a newline", ReceiveSpec{Target: "vault/a", Set: map[string]string{"mountpoint": "/x\n/y"}}, "one printable line", false},
		{"carried", ReceiveSpec{Target: "vault/a", Set: map[string]string{"atime": "off", "mountpoint": "/x"}, Carried: []string{"atime"}, Carry: Carry{All: true}},
			"receive -s -u -o atime=off -o mountpoint=/x vault/a", true},
		{"carried without a request", ReceiveSpec{Target: "vault/a", Set: map[string]string{"atime": "off"}, Carried: []string{"atime"}}, "not requested", false},
		{"carried without permission", ReceiveSpec{Target: "vault/a", Set: map[string]string{"setuid": "on"}, Carried: []string{"setuid"}, Carry: Carry{All: true, Named: []string{"setuid"}}}, "grant rights", false},
		{"carried to a volume", ReceiveSpec{Target: "vault/a", Set: map[string]string{"recordsize": "1M"}, Carried: []string{"recordsize"}, Arrival: Arrival{Volume: true}}, "not requested", false},
	} {
		args, err := ReceiveArgs(test.spec)
		if !test.ok {
			require.ErrorContains(t, err, test.want, test.name)
			continue
		}
		require.NoError(t, err, test.name)
		require.Equal(t, test.want, CommandLine(args), test.name)
	}
}

func TestReadingArgs(t *testing.T) {
	t.Parallel()
	require.Equal(t, "list -Hp -r -o name,guid,createtxg -t snapshot,bookmark tank", CommandLine(ListVersionsArgs(true, "tank")))
	require.Equal(t, "list -Hp -d 1 -o name,guid,createtxg -t snapshot,bookmark tank", CommandLine(ListVersionsArgs(false, "tank")))
	require.Equal(t, "get -H -o property -s local all tank", CommandLine(LocalArgs([]string{"tank"})))
	q := fenced("guid", "mountpoint", "type", "a:b", "no-such")
	const list = "guid,mountpoint," + capturedFence + ",type,a:b," + capturedFence + ",no-such," + capturedFence
	require.Equal(t, "get -Hp -o name,property,value,source "+list+" a b", CommandLine(q.GetArgs([]string{"a", "b"})))
	require.Equal(t, "get -Hp -o name,property,value,source -t filesystem,volume -r "+list+" tank/a", CommandLine(q.SurveyArgs(true, "tank/a")))
	for clones, want := range map[bool]string{false: "", true: ",bclonesaved"} {
		pool := PoolArgs("tank", clones)
		require.Equal(t, "tank", pool[len(pool)-1])
		require.Contains(t, pool[len(pool)-2], ",ashift,dedupratio"+want+",feature@async_destroy,feature@")
	}
	require.NoError(t, CheckProperty(capturedFence))
}

func TestForDigest(t *testing.T) {
	t.Parallel()
	raw := StreamFlags{Raw: true, LargeBlocks: true}
	require.Equal(t, raw, raw.ForDigest())
	require.Equal(t, StreamFlags{LargeBlocks: true}, StreamFlags{LargeBlocks: true, Embedded: true, Compressed: true}.ForDigest())
}

// TestCommandLine expects that a shell parses the quoted words to the original ones.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	argv := []string{"", "plain", "a b", "it's", `"`, "$HOME", "a\nb", "*", "#x", "~", "a=b", "tank/a@x"}
	out, err := exec.Command("sh", "-c", "printf '%s\\001' "+CommandLine(argv)).Output()
	require.NoError(t, err)
	require.Equal(t, argv, strings.Split(strings.TrimSuffix(string(out), "\x01"), "\x01"))
	require.Equal(t, "zfs send -i '#w' tank/a@x", CommandLine([]string{"zfs", "send", "-i", "#w", "tank/a@x"}))
}

func TestProperties(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"recordsize", "org.example:note", "feature@x", "written@a"} {
		require.NoError(t, CheckProperty(p), p)
	}
	for _, p := range []string{"", "-o", "a=b", "a b", "A", "a\n", strings.Repeat("a", 256)} {
		require.Error(t, CheckProperty(p), p)
	}
	require.False(t, Settable(Volume, "recordsize"))
	require.True(t, Settable(Filesystem, "recordsize"))
	require.False(t, Settable(Filesystem, "volblocksize"))
	require.True(t, Settable(Volume, "compression"))
	require.True(t, Settable(Volume, "org:note"))
	require.True(t, EncryptionBound("keyformat"))
	require.True(t, EncryptionBound("keylocation"))
	require.True(t, FixedAtCreation("volblocksize"))
	require.True(t, ReadOnly("origin"))
	for _, p := range append(SurveyProperties(), ChangeProperties()...) {
		require.NoError(t, CheckProperty(p))
	}
}
