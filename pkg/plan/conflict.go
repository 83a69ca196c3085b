package plan

import (
	"bytes"
	"encoding/json"
	"fmt"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// The ids of conflicts, which are part of the JSON output.
const (
	NoSnapshot      = "no-snapshot"        // nothing to send, or the snapshot asked for is not there
	SameDataset     = "same-dataset"       // source and target are one, or the target lies inside what is sent
	TypeMismatch    = "type-mismatch"      // filesystem onto volume, the other way round, or below a volume
	Diverged        = "diverged"           // the target has snapshots behind the common one
	NoCommon        = "no-common"          // the target has no snapshot of the source's history
	NameTaken       = "name-taken"         // the target has another snapshot of a name that would arrive
	Modified        = "modified"           // the target changed since its newest snapshot
	Mounted         = "mounted"            // a restore goes back over a filesystem that is in use
	Kept            = "kept"               // a snapshot that Rollback would destroy is held or has clones
	KeyNotLoaded    = "key-not-loaded"     // a key that must be loaded is not
	EncryptionMixed = "encryption-mixed"   // raw onto a dataset that was not received raw, or the reverse
	IVSetMismatch   = "ivset-mismatch"     // openzfs#8758
	KeyChanged      = "target-key-changed" // openzfs#12614
	FeatureMissing  = "feature-missing"    // the target's pool lacks a feature
	BadName         = "bad-name"           // a name on the target would be illegal or too long
	BadProperty     = "bad-property"       // -o or -x of a property that cannot be
	NoRoom          = "no-room"            // of many datasets, one that the target has no room for
	FirstRefused    = "first-refused"      // the target does not have the dataset, and none is to be begun there
	HalfReceived    = "half-received"      // a receive into the source, or into the target, is unfinished
)

// Conflicts are findings that forbid to send a dataset as asked. Each names
// both sides.
type Conflicts []finding.Finding

// published is a conflict as the JSON of plans has named its parts from the first.
type published struct {
	ID             string           `json:"id"`
	Host           string           `json:"-"`
	Severity       finding.Severity `json:"-"`
	Source         string           `json:"source"`
	Target         string           `json:"target"`
	Summary        string           `json:"message"`
	Evidence       string           `json:"-"`
	Remedy         string           `json:"hint,omitempty"`
	Consent        bool             `json:"-"`
	SourceVersions []string         `json:"source_versions,omitempty"`
	TargetVersions []string         `json:"target_versions,omitempty"`
}

// MarshalJSON writes them as published; none as an empty list.
func (c Conflicts) MarshalJSON() ([]byte, error) {
	out := make([]published, len(c))
	for i := range c {
		out[i] = published(c[i])
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // who writes the whole decides
	err := enc.Encode(out)
	return b.Bytes(), err
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Conflicts) UnmarshalJSON(text []byte) error {
	var in []published
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*c = nil
	for _, p := range in {
		p.Severity = finding.Fail
		*c = append(*c, finding.Finding(p))
	}
	return nil
}

// evidence is how many versions or names a message lists at most.
const evidence = 5

func (p *planner) conflict(id, source, target, hint, format string, args ...any) {
	p.plan.Refuse(finding.Finding{
		ID: id, Source: source, Target: target, Summary: fmt.Sprintf(format, args...), Remedy: hint,
		SourceVersions: newest(p.source[source], evidence), TargetVersions: newest(p.target[target], evidence),
	})
}

// Refuse adds a conflict.
func (p *Plan) Refuse(f finding.Finding) {
	f.Severity = finding.Fail
	p.Conflicts = append(p.Conflicts, f)
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
func newest(d *zfs.Dataset, most int) []string {
	var out []string
	if d == nil {
		return nil
	}
	for i := len(d.Versions) - 1; i >= 0 && len(out) < most; i-- {
		out = append(out, d.Versions[i].Short())
	}
	return out
}

// quoteNames joins the versions of a dataset for a message.
func quoteNames(d *zfs.Dataset) string {
	if len(d.Versions) == 0 {
		return "no snapshot"
	}
	return finding.Some(newest(d, len(d.Versions)), evidence)
}

// command is a command line of zfs(8) or zpool(8) that a hint names.
func command(argv ...string) string { return zfs.CommandLine(argv) }
