package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// Conflict IDs. They are part of the JSON output.
const (
	NoSnapshot      = "no-snapshot"        // nothing to send, or the requested snapshot does not exist
	SameDataset     = "same-dataset"       // source and target are the same, or the target is inside the source
	TypeMismatch    = "type-mismatch"      // filesystem onto volume, the reverse, or below a volume
	Diverged        = "diverged"           // the target has snapshots newer than the common one
	NoCommon        = "no-common"          // no common snapshot
	NameTaken       = "name-taken"         // the target has another snapshot with the name of an arriving one
	Modified        = "modified"           // the target changed since its most recent snapshot
	Mounted         = "mounted"            // a restore would roll back a mounted filesystem
	Kept            = "kept"               // a snapshot that Rollback would destroy has holds or clones
	KeyNotLoaded    = "key-not-loaded"     // a required key is not loaded
	EncryptionMixed = "encryption-mixed"   // raw onto a dataset not received raw, or the reverse
	IVSetMismatch   = "ivset-mismatch"     // openzfs#8758
	KeyChanged      = "target-key-changed" // openzfs#12614
	FeatureMissing  = "feature-missing"    // a pool lacks a feature
	BadName         = "bad-name"           // invalid or too long name on the target
	BadProperty     = "bad-property"       // invalid -o, -x or --carry
	NoRoom          = "no-room"            // no space on the target for one of many datasets
	FirstRefused    = "first-refused"      // the dataset is new on the target, and FirstFail forbids that
	HalfReceived    = "half-received"      // an unfinished receive into the source or the target
	Promoted        = "promoted"           // the target became the source in a fail over
	BlockSizes      = "block-sizes"        // plain increments in a new direction would lose data (openzfs#18663)
)

// Conflicts are findings that prevent a transfer. Each names both sides.
type Conflicts []finding.Finding

// jsonConflict is a conflict with the frozen JSON names of a plan.
type jsonConflict struct {
	ID             string           `json:"id"`
	Host           string           `json:"-"`
	Severity       finding.Severity `json:"-"`
	Source         string           `json:"source"`
	Target         string           `json:"target"`
	Summary        string           `json:"message"`
	Evidence       string           `json:"-"`
	Remedy         string           `json:"hint,omitempty"`
	Consent        bool             `json:"-"`
	Unchecked      bool             `json:"-"`
	SourceVersions []string         `json:"source_versions,omitempty"`
	TargetVersions []string         `json:"target_versions,omitempty"`
}

// MarshalJSON encodes conflicts as jsonConflict; nil as an empty list.
func (c Conflicts) MarshalJSON() ([]byte, error) {
	out := make([]jsonConflict, len(c))
	for i := range c {
		out[i] = jsonConflict(c[i])
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // the outer encoder decides
	err := enc.Encode(out)
	return b.Bytes(), err
}

// UnmarshalJSON decodes the output of MarshalJSON.
func (c *Conflicts) UnmarshalJSON(text []byte) error {
	var in []jsonConflict
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

// maxEvidence is the maximum number of versions or names in a message.
const maxEvidence = 5

// findings collects the conflicts and notes of a plan.
type findings struct {
	*view
	plan *Plan
}

func (f *findings) conflict(id, source, target, hint, format string, args ...any) {
	f.plan.Refuse(finding.Finding{
		ID: id, Source: source, Target: target, Summary: fmt.Sprintf(format, args...), Remedy: hint,
		SourceVersions: newest(f.source[source]), TargetVersions: newest(f.target[target]),
	})
}

// Refuse adds a conflict.
func (p *Plan) Refuse(f finding.Finding) {
	f.Severity = finding.Fail
	p.Conflicts = append(p.Conflicts, f)
}

func (f *findings) note(format string, args ...any) {
	f.plan.Notes = append(f.plan.Notes, fmt.Sprintf(format, args...))
}

// newest returns the names of the most recent versions of a dataset, nil if it does not exist.
func newest(d *zfs.Dataset) []string {
	if d == nil {
		return nil
	}
	return shortNames(d.Versions[max(0, len(d.Versions)-maxEvidence):])
}

// shortNames returns the names of versions, last first.
func shortNames(versions []zfs.Version) (out []string) {
	for _, v := range slices.Backward(versions) {
		out = append(out, v.Short())
	}
	return out
}

// listNames joins version names for a message.
func listNames(versions []zfs.Version) string {
	if len(versions) == 0 {
		return "no snapshot"
	}
	return finding.JoinFirst(shortNames(versions), maxEvidence)
}

// command returns a command line of zfs(8) or zpool(8) for a hint.
func command(argv ...string) string { return zfs.CommandLine(argv) }
