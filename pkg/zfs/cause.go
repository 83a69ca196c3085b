package zfs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"zxfer/pkg/remedy"
)

// Transfer holds the facts on which the cause of a failed stream depends.
type Transfer struct {
	SourceZFS, TargetZFS string // versions of the kernel modules, "" = unknown
	Send                 SendSpec
	Target               string // dataset
	Corrective           bool   // zfs receive -c
	SourceEncrypted      bool
	TargetEncrypted      bool // the target is or becomes encrypted
	// SourceAt is the source for commands of hints.
	SourceAt remedy.Host
	user     string // that ran the operation
}

// opStall is the operation of a stream that stalled. pkg/transfer writes its messages, and pkg/zfs/cli
// names the streams in them.
const opStall = "stall"

// knownCause is a cause of a failure that the message of ZFS does not name. Without an issue, it
// is a rule of ZFS.
type knownCause struct {
	op      string
	phrases []string // of the message, any of them, in the form of rules
	when    func(m *message) bool
	link    string // evidence
	issue   int    // of openzfs/zfs
	sure    bool   // the message cannot have another cause
	cause   func(m *message) string
	fix     string // releases with a fix
	remedy  func(m *message) string
}

// message is a message with the facts about its transfer.
type message struct {
	*Transfer
	plain  string // in the form of rules, names replaced
	object string // its object number, of a record that the gate refused
}

const (
	noFix = "no release has a fix"

	issues      = "https://github.com/openzfs/zfs/issues/"
	libzfsRecv  = "https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c"
	refusedOnly = "kernel modules must be upgraded to receive this stream" // of EINVAL, with -s
)

// beyondEnd matches the gate's message about a block that ends beyond the largest offset.
var beyondEnd = regexp.MustCompile(`WRITE(?:_EMBEDDED)? record of object (\d+): offset \d+ and length \d+ are too large`)

func always(text string) func(*message) string { return func(*message) string { return text } }

// knownCauses are tried in order, and the first match wins.
func knownCauses() []knownCause {
	return []knownCause{
		// ZFS sets the stream's flag for large blocks only if the feature is active in the source
		// dataset. Releases after 2.4.4 print the second phrase (pull request 19128).
		{op: OpReceive, link: issues + "18101", issue: 18101, sure: true,
			phrases: []string{"requires -l (--large-block), to match previous receive", "destination contains large blocks, but the incremental stream does not carry them"},
			when:    func(m *message) bool { return m.Send.Flags.Raw || m.Send.Flags.LargeBlocks },
			cause:   always("ZFS ignores zfs send -L if the source dataset never had large blocks"),
			fix:     "ZFS 2.4.1 and later prevent this in copies that they receive; for this copy",
			remedy:  always("send in full to a new target")},

		// With -s, libzfs prints this for each EINVAL of the kernel (openzfs#12720), and also if a signal
		// stopped zfs receive within the stream's header.
		{op: OpReceive, link: libzfsRecv, phrases: []string{refusedOnly},
			when:   func(m *message) bool { return !m.resumed() && m.targetIsOlder() },
			cause:  always("the target has an older ZFS than the source, perhaps too old for this stream"),
			remedy: always("upgrade ZFS on the target")},
		{op: OpReceive, link: issues + "18685", issue: 18685, phrases: []string{refusedOnly, "invalid backup stream"},
			when:  func(m *message) bool { return !m.resumed() && !m.Corrective },
			cause: always("the kernel refused an object with an invalid bonus type, which no scrub reports"),
			fix:   noFix,
			remedy: func(m *message) string {
				return "if it fails again, replace that file and send a new snapshot\nto find its object: " + m.SourceAt.Line(m.sendCommand()+" | zstream dump -v | grep bonustype")
			}},

		{op: OpReceive, link: issues + "18239", issue: 18239, phrases: []string{"are too large"},
			when: func(m *message) bool { return m.object != "" },
			cause: func(m *message) string {
				return fmt.Sprintf("object %s of the source has a spurious block, left by zfs send -e", m.object)
			},
			fix: noFix,
			remedy: func(m *message) string {
				return "replace that file and send a new snapshot\nto show its path: " + m.SourceAt.Command("zdb", "-dddd", m.Send.Dataset, m.object)
			}},
		{op: OpReceive, link: issues + "18239", issue: 18239, sure: true, phrases: []string{embeddedSpill},
			cause:  always("zfs send -e, which started this stream, sends some extended attributes as file data"),
			fix:    noFix,
			remedy: always("restart it without embedded blocks: {{no-resume}}")},
		{op: OpReceive, link: libzfsRecv, phrases: []string{"incompatible embedded data stream feature with encrypted receive"},
			when:   func(m *message) bool { return m.TargetEncrypted },
			cause:  always("an encrypted dataset cannot receive a stream that was started with zfs send -e"),
			remedy: always("restart it without embedded blocks: {{no-resume}}")},
		// libzfs prints this for each EINVAL of the kernel if the stream has embedded data.
		{op: OpReceive, link: issues + "18239", issue: 18239, phrases: []string{"incompatible embedded data stream feature with encrypted receive"},
			cause:  always("ZFS refused a record for an unencrypted target, such as a spurious block"),
			fix:    noFix,
			remedy: always("restart the stream without embedded blocks: {{no-resume}}")},

		{op: OpReceive, link: "https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c", phrases: []string{"encryption key does not match existing key"},
			cause:  always("the target may not be a raw copy of this dataset: its master key differs"),
			remedy: always("send in full to a new target")},
		// In the reports, keystatus is "available".
		{op: OpMount, link: issues + "12614", issue: 12614, phrases: []string{"permission denied"},
			when:  func(m *message) bool { return m.user == "root" },
			cause: always("a raw increment after zfs change-key left a key that nothing opens"),
			fix:   noFix,
			remedy: func(m *message) string {
				return "send in full to a new target, if its key is loaded\nto check the key: " + remedy.Mark(CommandLine([]string{"zfs", "get", "keystatus", m.Target}))
			}},

		{op: OpReceive, link: libzfsRecv, phrases: []string{"invalid stream (bad magic number)"},
			cause:  always("the bytes do not start as a ZFS stream"),
			remedy: always("look for a program on the source host that prints before the stream, such as a login script")},
		{op: OpReceive, link: libzfsRecv, phrases: []string{"invalid stream (malformed nvlist)", "invalid stream (bad snapshot name)"},
			cause:  always("the start of the stream is damaged, or not from zfs send"),
			remedy: always("run the same command again; if it fails again, test the memory of both hosts")},
		{op: OpReceive, link: libzfsRecv, phrases: []string{"checksum mismatch"},
			when:   func(m *message) bool { return !strings.Contains(m.plain, "checksum mismatch or incomplete") },
			cause:  always("bytes may have changed after zfs send computed their checksum"),
			remedy: always("test the memory of both hosts")},
		{op: OpReceive, link: issues + "11081", issue: 11081, phrases: []string{"invalid record type"},
			when:   func(m *message) bool { return m.Send.Flags.Raw },
			cause:  always("a raw stream repeats a snapshot that the target already has"),
			remedy: always("run the same command again: it plans only missing snapshots")},

		// A panic blocks zfs receive in the kernel, without a message.
		{op: opStall, link: issues + "16623", issue: 16623, phrases: []string{"zfs receive … accepted no data"},
			when: func(m *message) bool {
				v, ok := ParseRelease(m.TargetZFS)
				return ok && !v.Before(Release{2, 2, 0}) && m.TargetEncrypted && !m.Send.Flags.Raw
			},
			cause:  always("a plain stream into an encrypted dataset panicked the target's kernel"),
			fix:    noFix,
			remedy: always("if its dmesg shows \"PANIC at dmu_recv.c\", restart that host\nto prevent it, encrypt the source, so that zxfer sends raw")},
		// Until 2.2.2 such a block panicked the sender (commit f71c16a661). Now zfs send reports EIO and adds it to
		// the errors of zpool status, as it does for unreadable blocks. Pull request 18587, with which a scrub
		// finds such blocks, is not merged.
		{op: OpSend, link: issues + "14330", issue: 14330, phrases: []string{"input/output error"},
			when:  func(m *message) bool { return m.SourceEncrypted && !m.sendPanics() },
			cause: always("an encrypted dataset has an unencrypted block, which zfs send refuses"),
			fix:   noFix,
			remedy: func(m *message) string {
				return "if zpool status shows no disk errors\nreplace the files that zpool status -v lists, and send a new snapshot"
			}},
		{op: opStall, link: issues + "14330", issue: 14330, phrases: []string{"zfs send … sent no data"},
			when:   func(m *message) bool { return m.SourceEncrypted && m.sendPanics() },
			cause:  always("an unencrypted block of an encrypted dataset panicked the source's kernel"),
			fix:    "ZFS 2.2.3 and later report an error",
			remedy: always("search its dmesg for \"unencrypted block in encrypted object set\"\nif it is there, restart that host")},
	}
}

// Explain returns the known cause of the error of a transfer, with a remedy, or "" if none is
// known. The hosts of a transfer know only their own version.
func (t *Transfer) Explain(err error) string {
	var e *Error
	if errors.As(err, &e) {
		if hint := t.explain(e.Op, e.Detail); hint != "" {
			return hint
		}
	}
	return t.explain(opStall, err.Error())
}

func (t *Transfer) explain(op, text string) string {
	m := message{Transfer: t, plain: text}
	for _, name := range []string{t.Send.Dataset + "@" + t.Send.To, t.Send.Dataset, t.Target} {
		if name != "" && name != "@" {
			m.plain = strings.ReplaceAll(m.plain, name, "…")
		}
	}
	m.plain = normalize(m.plain)
	if found := beyondEnd.FindStringSubmatch(text); found != nil {
		m.object = found[1]
	}
	for _, c := range knownCauses() {
		if c.op == op && c.matches(&m) {
			return c.hint(&m)
		}
	}
	return ""
}

func (c *knownCause) matches(m *message) bool {
	for _, phrase := range c.phrases {
		if strings.Contains(m.plain, phrase) {
			return c.when == nil || c.when(m)
		}
	}
	return false
}

func (c *knownCause) hint(m *message) string {
	text := c.cause(m)
	switch {
	case c.issue != 0 && c.sure:
		text = fmt.Sprintf("openzfs#%d: %s", c.issue, text)
	case c.issue != 0:
		text = fmt.Sprintf("may be openzfs#%d: %s", c.issue, text)
	}
	if c.fix != "" {
		return text + "\n" + c.fix + ": " + c.remedy(m)
	}
	return text + "\n" + c.remedy(m)
}

// resumed reports whether the message is about the rest of a stream, for which it has another
// cause: the partially received state no longer exists.
func (m *message) resumed() bool { return strings.Contains(m.plain, "cannot receive resume stream") }

// targetIsOlder reports whether the target runs an older branch of OpenZFS than the source.
func (m *message) targetIsOlder() bool {
	source, okA := ParseRelease(m.SourceZFS)
	target, okB := ParseRelease(m.TargetZFS)
	source[2], target[2] = 0, 0
	return okA && okB && target.Before(source)
}

// sendPanics reports whether zfs send of the source may panic at an unencrypted block.
func (m *message) sendPanics() bool {
	v, ok := ParseRelease(m.SourceZFS)
	return !ok || v.Before(Release{2, 2, 3})
}

// sendCommand returns the command that creates the stream again, or zfs send … if it is unknown.
func (m *message) sendCommand() string {
	s := m.Send
	s.Token, s.Through = "", nil
	args, err := SendArgs(s)
	if err != nil {
		return "zfs send …"
	}
	return CommandLine(append([]string{"zfs"}, args...))
}
