package device

import (
	"fmt"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/finding"
)

// VolumeTask is the copy of a volume's snapshot to a device or image file: in full, or only the
// changes since the snapshot that the target holds.
type VolumeTask struct {
	Target   Facts          `json:"target"` // as planned: the opened device must match
	Snapshot VolumeSnapshot `json:"snapshot"`
	// Base is the snapshot since which the changes come, zero for a full copy.
	Base     VolumeSnapshot `json:"base,omitzero"`
	Allow    Allow          `json:"allow"`
	NoVerify bool           `json:"no_verify,omitempty"` // do not read back
}

// SourceFacts describes the snapshot to the checks of the target.
func (t VolumeTask) SourceFacts() Facts {
	return Facts{Path: t.Snapshot.String(), Real: t.Snapshot.String(), Kind: KindSnapshot, Size: t.Snapshot.Size}
}

// KindSnapshot is the kind of Facts for a snapshot of a ZFS volume.
const KindSnapshot = "snapshot"

// Interrupted reports whether the target holds this copy, interrupted and otherwise unchanged.
func (t VolumeTask) Interrupted() bool {
	c := t.Target.Volume
	return c != nil && c.Changed == "" && c.Applying.GUID == t.Snapshot.GUID && c.Applying.GUID != 0 && c.Held.GUID == t.Base.GUID
}

// CheckTarget returns the objections to the copy. Changes need no consent, because the target holds
// the snapshot since which they come.
func (t VolumeTask) CheckTarget() []finding.Finding {
	allow := t.Allow
	allow.Sparse = true
	f := findings(checkTarget(t.SourceFacts(), t.Target, allow))
	full := t.Base.GUID == 0
	ours := !full || t.Interrupted()
	kept := f[:0]
	for _, x := range f {
		if !x.Consent || !ours {
			kept = append(kept, x)
		}
	}
	f = kept
	c := t.Target.Volume
	switch {
	case full && t.Target.Kind == KindZvol:
		f.add(finding.Fail, "target-volume", "", "send to its dataset: zxfer send SRC HOST:POOL/NAME", "%s is a ZFS volume", t.Target.Path)
	case full && t.Target.Kind == KindFile && c == nil && t.Target.Size != 0 && t.Target.Size != t.Snapshot.Size:
		f.add(finding.Fail, "target-size", fmt.Sprintf("%d bytes, the volume has %d", t.Target.Size, t.Snapshot.Size), "name another file, or delete this one",
			"%s has another size than the volume, and is not a copy that zxfer made", t.Target.Path)
	case full:
	case c == nil:
		f.add(finding.Fail, "target-no-record", "", t.fullHint(), "%s has no record of a copy of a volume", t.Target.Path)
	case c.Changed != "":
		f.add(finding.Fail, "target-changed", c.Changed, t.fullHint(), "%s no longer holds %s: %s", t.Target.Path, c.Held, c.Changed)
	case c.Held.GUID != t.Base.GUID, c.Applying.GUID != 0 && c.Applying.GUID != t.Snapshot.GUID:
		f.add(finding.Fail, "target-base", "", t.fullHint(), "%s holds %s, not %s", t.Target.Path, c, t.Base)
	}
	return f
}

// String describes the contents of a target.
func (c *VolumeCopy) String() string {
	text := c.Held.String()
	switch {
	case c.Held.GUID == 0 && c.Applying.GUID == 0:
		return c.Changed
	case c.Held.GUID == 0:
		text = "an incomplete copy of " + c.Applying.String()
	case c.Applying.GUID != 0:
		text += " with a part of the changes up to @" + c.Applying.Name
	}
	if c.Changed != "" {
		text += ", but " + c.Changed
	}
	return text
}

// fullHint returns how to copy in full.
func (t VolumeTask) fullHint() string {
	return fmt.Sprintf("to copy everything again, use zxfer dev with {{overwrite}} {{confirm}} %s", shellquote.Join(t.Target.Confirmation()))
}
