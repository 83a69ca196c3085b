package plan

import (
	"fmt"
	"strings"

	"zxfer/pkg/zfs"
)

// ConflictID names a kind of conflict in JSON output and docs.
type ConflictID string

// The kinds of conflicts. Their texts are part of the JSON output.
const (
	NoSnapshot      ConflictID = "no-snapshot"        // nothing to send, or the snapshot asked for is not there
	SameDataset     ConflictID = "same-dataset"       // source and target are one, or the target lies inside what is sent
	TypeMismatch    ConflictID = "type-mismatch"      // filesystem onto volume, the other way round, or below a volume
	Diverged        ConflictID = "diverged"           // the target has snapshots behind the common one
	NoCommon        ConflictID = "no-common"          // the target has no snapshot of the source's history
	NameTaken       ConflictID = "name-taken"         // the target has another snapshot of a name that would arrive
	Modified        ConflictID = "modified"           // the target changed since its newest snapshot
	Kept            ConflictID = "kept"               // a snapshot that Rollback would destroy is held or has clones
	KeyNotLoaded    ConflictID = "key-not-loaded"     // a key that must be loaded is not
	EncryptionMixed ConflictID = "encryption-mixed"   // raw onto a dataset that was not received raw, or the reverse
	IVSetMismatch   ConflictID = "ivset-mismatch"     // openzfs#8758
	KeyChanged      ConflictID = "target-key-changed" // openzfs#12614
	FeatureMissing  ConflictID = "feature-missing"    // the target's pool lacks a feature
	BadName         ConflictID = "bad-name"           // a name on the target would be illegal or too long
	BadProperty     ConflictID = "bad-property"       // -o or -x of a property that cannot be
	NoRoom          ConflictID = "no-room"            // of many datasets, one that the target has no room for
	HalfReceived    ConflictID = "half-received"      // a receive into the source, or into the target, is unfinished
)

// Conflict is a reason why a dataset cannot be sent as asked. Its message
// names both sides.
type Conflict struct {
	ID      ConflictID `json:"id"`
	Source  string     `json:"source"`
	Target  string     `json:"target"`
	Message string     `json:"message"`
	Hint    string     `json:"hint,omitempty"`
	// SourceVersions and TargetVersions are the newest versions of each
	// side, newest first, as evidence.
	SourceVersions []string `json:"source_versions,omitempty"`
	TargetVersions []string `json:"target_versions,omitempty"`
}

// evidence is how many versions or names a message lists at most.
const evidence = 5

func (p *planner) conflict(id ConflictID, source, target, hint, format string, args ...any) {
	p.plan.Conflicts = append(p.plan.Conflicts, &Conflict{
		ID: id, Source: source, Target: target, Message: fmt.Sprintf(format, args...), Hint: hint,
		SourceVersions: newest(p.source[source]), TargetVersions: newest(p.target[target]),
	})
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

// onSource and onTarget name a dataset together with its host.
func (p *planner) onSource(name string) string { return on(p.state.SourceHost, name) }
func (p *planner) onTarget(name string) string { return on(p.state.TargetHost, name) }

func on(host, name string) string {
	if host == "" {
		return name
	}
	return host + ":" + name
}

// newest lists some versions of a dataset, newest first.
func newest(d *zfs.Dataset) []string {
	var out []string
	if d == nil {
		return nil
	}
	for i := len(d.Versions) - 1; i >= 0 && len(out) < evidence; i-- {
		out = append(out, d.Versions[i].Short())
	}
	return out
}

// named joins the versions of a dataset for a message.
func named(d *zfs.Dataset) string {
	if len(d.Versions) == 0 {
		return "no snapshot"
	}
	return some(newest(d), len(d.Versions))
}

// some joins a list for a message, saying how many of total it leaves out.
func some(list []string, total int) string {
	list = list[:min(evidence, len(list))]
	s := strings.Join(list, ", ")
	if more := total - len(list); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// command is a command line of zfs(8) or zpool(8) that a hint names.
func command(argv ...string) string { return zfs.CommandLine(argv) }
