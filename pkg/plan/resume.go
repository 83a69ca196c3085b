package plan

import (
	"fmt"

	"zxfer/pkg/zfs"
)

// resume plans the rest of an interrupted receive, if there is one and it
// leads anywhere; otherwise Discard says why its state will be dropped.
func (p *planner) resume(d, t *zfs.Dataset, out *Dataset, to zfs.Version) bool {
	text := t.ResumeToken()
	if text == "" {
		if t.Inconsistent() {
			out.Discard = "a first receive was cut off without leaving a resume token"
		}
		return false
	}
	if p.req.NoResume {
		out.Discard = "asked for (--no-resume)"
		return false
	}
	token, err := zfs.ParseToken(text)
	if err != nil {
		out.Discard = err.Error()
		return false
	}
	at, why := p.resumable(d, token, to)
	if why != "" {
		out.Discard = why
		return false
	}
	known := t
	if t.Inconsistent() {
		known = nil
	}
	flags, ok := p.flags(d, known, out)
	if !ok {
		return true // a conflict came up
	}
	// A token tells of large blocks only where the stream has met one.
	flags.LargeBlocks = flags.LargeBlocks || token.Flags.LargeBlocks && !flags.Raw
	step := Step{
		Kind: Resume, Done: token.Bytes, BaseGUID: token.FromGUID, ToGUID: token.ToGUID,
		Send:    zfs.SendSpec{Dataset: d.Name, To: at.Name, Token: text, Flags: flags},
		Receive: zfs.ReceiveSpec{Target: out.Target},
		Why:     fmt.Sprintf("the target has the first %d bytes of @%s", token.Bytes, at.Name),
	}
	// A first receive takes its properties again; those of an existing
	// dataset are there already.
	step.Receive.Set, step.Receive.Exclude = p.receiveProperties(d, flags, t.Inconsistent())
	if token.FromGUID != 0 {
		for _, v := range d.Versions {
			if v.GUID == token.FromGUID {
				step.Send.From = v.Short()
			}
		}
	}
	out.Steps = append(out.Steps, step)
	p.follow(d, out, at, p.req.runs(d, at.CreateTXG, to, false), flags)
	return true
}

// resumable returns the snapshot that a token leads to, or why it is of no use.
func (p *planner) resumable(d *zfs.Dataset, token zfs.Token, to zfs.Version) (zfs.Version, string) {
	at, ok := snapshotWithGUID(d, token.ToGUID)
	switch {
	case !ok:
		return at, fmt.Sprintf("its snapshot %s is gone from the source", token.ToName)
	case at.In(d.Name) != token.ToName:
		return at, fmt.Sprintf("its snapshot %s is now named %s, which zfs send -t does not find", token.ToName, at.In(d.Name))
	case token.Redacted || token.Saved:
		return at, "it belongs to a redacted or saved stream"
	case d.Encrypted() && !p.req.Decrypt && !token.Flags.Raw:
		return at, "the interrupted stream was not raw, and encrypted data is only sent raw"
	case d.Encrypted() && p.req.Decrypt && token.Flags.Raw:
		return at, "the interrupted stream was raw, and --decrypt was asked for"
	case at.CreateTXG > to.CreateTXG:
		return at, fmt.Sprintf("its snapshot @%s is newer than @%s, which is asked for", at.Name, to.Name)
	}
	if token.FromGUID != 0 && !p.hasVersion(d, token.FromGUID) {
		return at, fmt.Sprintf("the base of its stream (GUID %d) is gone from the source", token.FromGUID)
	}
	return at, ""
}

// hasVersion tells whether the source still has a base: in the dataset, or as
// a clone's origin.
func (p *planner) hasVersion(d *zfs.Dataset, guid uint64) bool {
	for _, v := range d.Versions {
		if v.GUID == guid {
			return true
		}
	}
	return p.sourceSnap[d.Get("origin")] == guid
}
