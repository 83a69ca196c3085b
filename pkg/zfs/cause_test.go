package zfs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/remedy"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	at := func(source, target string, change func(*Transfer)) Transfer {
		f := Transfer{SourceZFS: source, TargetZFS: target, Target: "vault/a",
			Send: SendSpec{Dataset: "tank/a", From: "@x", To: "y", Flags: StreamFlags{LargeBlocks: true, Compressed: true}}}
		if change != nil {
			change(&f)
		}
		return f
	}
	same := at("2.3.9-1", "2.3.9-1", nil)
	raw := at("2.3.9", "2.3.9", func(f *Transfer) {
		f.Send.Flags, f.SourceEncrypted, f.TargetEncrypted = StreamFlags{Raw: true}, true, true
	})
	small := at("2.3.9", "2.3.9", func(f *Transfer) { f.Send.Flags.LargeBlocks = false })
	encrypted := at("2.3.9", "2.2.0", func(f *Transfer) { f.TargetEncrypted = true })
	const (
		needL    = "cannot receive incremental stream: incremental send stream requires -L (--large-block), to match previous receive."
		kernel   = "cannot receive new filesystem stream: kernel modules must be upgraded to receive this stream."
		invalid  = "cannot receive incremental stream: invalid backup stream"
		embedded = "cannot receive new filesystem stream: incompatible embedded data stream feature with encrypted receive."
		record   = "cannot receive: invalid record type"
		otherKey = "cannot receive incremental stream: encryption key does not match existing key"
	)
	beyond := func(kind string) string {
		return "the stream is not what was planned: " + kind + " record of object 396510: offset 18446744073709486080 and length 65536 are too large"
	}
	for _, tt := range []struct {
		name, from string // from: origin of the message
		of         Transfer
		op, text   string
		want       string // start of the hint
	}{
		{"-L without large blocks", "openzfs#18101; testdata/zfs-2.3.9/stderr.txt", same, OpReceive, needL, "openzfs#18101: ZFS ignores zfs send -L"},
		{"raw without large blocks", "openzfs#18101", raw, OpReceive, needL, "openzfs#18101: "},
		{"without -L", "openzfs#18101", small, OpReceive, needL, ""},
		{"-L without large blocks, later releases", "openzfs pull request 19128", same, OpReceive,
			"cannot receive incremental stream: destination contains large blocks, but the\nincremental stream does not carry them. Either the sending side omitted -L", "openzfs#18101: "},

		{"EINVAL with -s", "openzfs#12720", same, OpReceive, kernel, "may be openzfs#18685: "},
		{"EINVAL with -s, versions unknown", "openzfs#12720", at("", "git", nil), OpReceive, kernel, "may be openzfs#18685: "},
		{"EINVAL with -s, newer target", "openzfs#12720", at("2.1.16", "2.3.9", nil), OpReceive, kernel, "may be openzfs#18685: "},
		{"EINVAL with -s, older target", "openzfs#12720", at("2.3.9", "2.1.16-1", nil), OpReceive, kernel, "the target has an older ZFS than the source, perhaps too old"},
		{"EINVAL with -s, older patch level", "openzfs#12720", at("2.3.9", "2.3.2", nil), OpReceive, kernel, "may be openzfs#18685: "},
		{"no partial state", "testdata/zfs-2.3.9/stderr.txt", same, OpReceive, "cannot receive resume stream: kernel modules must be upgraded to receive this stream.", ""},
		{"EINVAL", "openzfs#18685", same, OpReceive, invalid, "may be openzfs#18685: "},
		{"EINVAL of a corrective receive", "openzfs#18685", at("2.3.9", "2.3.9", func(f *Transfer) { f.Corrective = true }), OpReceive, invalid, ""},
		{"EINVAL as the name", "", at("2.3.9", "2.3.9", func(f *Transfer) { f.Target = "vault/invalid backup stream" }), OpReceive, "cannot open 'vault/invalid backup stream': strange", ""},

		{"spurious block", "recordrules.go, with the offset of openzfs#18239", same, OpReceive, beyond("WRITE"), "may be openzfs#18239: object 396510 of the source"},
		{"spurious embedded block", "recordrules.go, with the offset of openzfs#18239", same, OpReceive, beyond("WRITE_EMBEDDED"), "may be openzfs#18239: object 396510 "},
		{"free beyond the end", "recordrules.go", same, OpReceive, beyond("FREE"), ""},
		{"embedded extended attributes", "recordrules.go", same, OpReceive,
			"the stream is not what was planned: WRITE_EMBEDDED record of object 7: " + embeddedSpill, "openzfs#18239: zfs send -e, which started"},
		{"-e into a plain dataset", "openzfs#18239", same, OpReceive, embedded, "may be openzfs#18239: ZFS refused a record for an unencrypted target"},
		{"-e into an encrypted dataset", "openzfs#18239", encrypted, OpReceive, embedded, "an encrypted dataset cannot receive"},

		{"another master key", "libzfs_sendrecv.c of zfs-2.3.9", raw, OpReceive, otherKey, "the target may not be a raw copy"},
		{"replaced key", "openzfs#12123", Transfer{Target: "rpool/data/subvol-108-disk-0", user: "root"}, OpMount, "cannot mount 'rpool/data/subvol-108-disk-0': Permission denied", "may be openzfs#12614: "},
		{"mount by a user", "openzfs#12123", Transfer{Target: "rpool/a", user: "ann"}, OpMount, "cannot mount 'rpool/a': Permission denied", ""},

		{"bad magic number", "testdata/zfs-2.3.9/stderr.txt", same, OpReceive, "cannot receive: invalid stream (bad magic number)", "the bytes do not start as a ZFS stream"},
		{"bad snapshot name", "libzfs_sendrecv.c of zfs-2.3.9", same, OpReceive, "cannot receive: invalid stream (bad snapshot name)", "the start of the stream is damaged"},
		{"malformed nvlist", "libzfs_sendrecv.c of zfs-2.3.9", same, OpReceive, "cannot receive: invalid stream (malformed nvlist)", "the start of the stream is damaged"},
		{"checksum", "testdata/zfs-2.1-2.4/stderr.txt", same, OpReceive, "cannot receive: invalid stream (checksum mismatch)", "bytes may have changed after zfs send"},
		{"incomplete", "testdata/zfs-2.3.9/stderr.txt", same, OpReceive, "cannot receive incremental stream: checksum mismatch or incomplete stream.\nPartially received snapshot is saved.", ""},
		{"repeated snapshot", "openzfs#11081", raw, OpReceive, record, "may be openzfs#11081: "},
		{"invalid record type, plain", "openzfs#11081", same, OpReceive, record, ""},

		{"panic of the target", "pkg/transfer; the reports have no message of ZFS", encrypted, opStall, "no data was transferred for 10m0s: zfs receive vault/a accepted no data", "may be openzfs#16623: "},
		{"stall of another target", "pkg/transfer", same, opStall, "no data was transferred for 10m0s: zfs receive vault/a accepted no data", ""},
		{"stall of a raw receive", "pkg/transfer", raw, opStall, "no data was transferred for 10m0s: zfs receive vault/a accepted no data", ""},
		{"stall of an old target", "pkg/transfer", at("2.3.9", "2.1.16", func(f *Transfer) { f.TargetEncrypted = true }), opStall, "no data was transferred for 10m0s: zfs receive vault/a accepted no data", ""},
		{"panic of the source", "pkg/transfer; the reports have no message of ZFS", at("2.2.2", "2.3.9", func(f *Transfer) { f.SourceEncrypted = true }), opStall, "no data was transferred for 10m0s: zfs send tank/a@y sent no data", "may be openzfs#14330: "},
		{"stall of a later source", "pkg/transfer", raw, opStall, "no data was transferred for 10m0s: zfs send tank/a@y sent no data", ""},
		{"stall of another source", "pkg/transfer", same, opStall, "no data was transferred for 10m0s: zfs send tank/a@y sent no data", ""},
		{"stall of the network", "pkg/transfer", raw, opStall, "no data was transferred for 10m0s: the network or the other host sent no data", ""},

		{"EIO of an encrypted source", "testdata/zfs-2.1-2.4/stderr.txt", raw, OpSend, "warning: cannot send 'pa/d@s1': Input/output error", "may be openzfs#14330: an encrypted dataset has"},
		{"EIO of an old encrypted source", "testdata/zfs-2.1-2.4/stderr.txt", at("2.1.16", "2.3.9", func(f *Transfer) { f.SourceEncrypted = true }), OpSend, "warning: cannot send 'pa/d@s1': Input/output error", ""},
		{"EIO of a plain source", "testdata/zfs-2.1-2.4/stderr.txt", same, OpSend, "warning: cannot send 'pa/d@s1': Input/output error", ""},

		{"another operation", "", same, OpSend, needL, ""},
		{"unknown", "testdata/zfs-2.3.9/stderr.txt", same, OpReceive, "cannot receive: failed to read from stream", ""},
	} {
		got := tt.of.explain(tt.op, tt.text)
		if tt.want == "" {
			require.Empty(t, got, tt.name)
			continue
		}
		require.True(t, strings.HasPrefix(got, tt.want), "%s: %q", tt.name, got)
		require.NotEmpty(t, tt.from, tt.name)
		require.LessOrEqual(t, strings.Count(got, "\n"), 2, tt.name)
		for line := range strings.SplitSeq(got, "\n") {
			require.LessOrEqual(t, len(line), 105, tt.name+": "+line)
		}
	}
}

// TestKnownCauses expects each cause to have evidence, and each issue a link to it.
func TestKnownCauses(t *testing.T) {
	t.Parallel()
	for _, c := range knownCauses() {
		require.NotEmpty(t, c.phrases)
		require.True(t, strings.HasPrefix(c.link, "https://github.com/openzfs/zfs/"), c.link)
		require.Equal(t, c.issue != 0, strings.HasSuffix(c.link, "/issues/"+strconv.Itoa(c.issue)), c.link)
		for _, p := range c.phrases {
			require.Equal(t, normalize(p), p)
		}
	}
}

// TestExplainError expects the message of ZFS inside another error, and else the text of a stall.
func TestExplainError(t *testing.T) {
	t.Parallel()
	f := Transfer{Target: "vault/a", Send: SendSpec{Dataset: "tank/a", To: "y", Flags: StreamFlags{Raw: true}}, SourceEncrypted: true}
	failed := &Error{Op: OpReceive, Detail: "cannot receive incremental stream: invalid backup stream"}
	require.Equal(t, "may be openzfs#18685: the kernel refused an object with an invalid bonus type, which no scrub reports\n"+
		"no release has a fix: if it fails again, replace that file and send a new snapshot\n"+
		"to find its object: zfs send -w tank/a@y | zstream dump -v | grep bonustype", f.Explain(fmt.Errorf("beta: %w", failed)))
	require.Contains(t, f.Explain(errors.New("alpha: no data was transferred for 1m0s: zfs send tank/a@y sent no data")), "openzfs#14330")
	require.Empty(t, f.Explain(errors.New("alpha: invalid backup stream")), "not a message of ZFS")
	f.Send.To = ""
	require.Contains(t, f.Explain(failed), "to find its object: zfs send … | ")
}

// TestLocalCause expects the cause of operations on one host in their own hint.
func TestLocalCause(t *testing.T) {
	t.Parallel()
	e := Failure{Op: OpMount, Subject: "tank/b c", User: "root", Stderr: "cannot mount 'tank/b c': Permission denied"}.Err()
	require.Equal(t, Permission, e.Kind)
	require.Equal(t, "may be openzfs#12614: a raw increment after zfs change-key left a key that nothing opens\n"+
		"no release has a fix: send in full to a new target, if its key is loaded\n"+
		"to check the key: zfs get keystatus 'tank/b c'", remedy.Here(e.Hint))
	e = Failure{Op: OpReceive, Subject: "vault/a", Stderr: "cannot receive new filesystem stream: kernel modules must be upgraded to receive this stream."}.Err()
	require.Equal(t, Feature, e.Kind)
	require.Empty(t, e.Hint, "no feature is missing")
}
