package plan

import (
	"fmt"

	"zxfer/pkg/zfs"
)

// resume plans the rest of an interrupted receive and the following streams. If the received
// state is unusable, it sets Discard and plans nothing. It reports whether planning of the
// dataset is complete.
func (p *planner) resume(d, t *zfs.Dataset, out *Dataset) bool {
	if p.req.NoResume {
		out.Discard = "requested by {{no-resume}}"
		return false
	}
	text := t.ResumeToken()
	token, err := zfs.ParseToken(text)
	if err != nil {
		out.Discard = err.Error()
		return false
	}
	at, why := p.bases.tokenTarget(d, t, token, out.Final)
	if why != "" {
		out.Discard = why
		return false
	}
	if !p.acceptsStream(d, t, out) {
		return true
	}
	step := Step{
		Kind: Resume, Done: token.Bytes, BaseGUID: token.FromGUID, ToGUID: token.ToGUID,
		Send:    zfs.SendSpec{Dataset: d.Name, To: at.Name, Token: text, Flags: p.chains.tokenFlags(d, t, token)},
		Receive: p.chains.receiveSpec(out.Target),
		Why:     fmt.Sprintf("an interrupted receive left the first %d bytes of @%s", token.Bytes, at.Name),
	}
	if token.Flags.Embedded && !token.Flags.Raw && d.Type == zfs.Filesystem {
		p.note("%s: the interrupted stream was started with zfs send -e, which loses larger extended attributes (xattr=sa); to restart it, add {{no-resume}}", p.onTarget(t.Name))
	}
	if t.Inconsistent() {
		// A first receive sets its properties again, except encryption. The rest of a clone's
		// stream needs its origin.
		p.properties.setNew(&step.Receive, d, step.Send.Flags, p.keys.encryptionAbove(out.Target), out)
		dropEncryption(step.Receive.Set)
		step.Receive.Origin = t.Get("origin")
	} else {
		p.properties.setChanged(&step.Receive, d, out)
		p.properties.setLacking(d, out)
	}
	step.Receive.Arrival = segment{to: at}.arrival(token.FromGUID, out)
	step.Receive.Arrival.Resumed = true
	step.Send.From = p.bases.nameOf(d, token.FromGUID)
	out.Steps = append(out.Steps, step)
	if base, ok := t.SnapshotOf(token.FromGUID); ok && !t.Inconsistent() {
		from, snapshot := d.SnapshotOf(token.FromGUID)
		if !snapshot {
			from.Kind = zfs.Bookmark
		}
		p.directions.plan(d, t, out, from, base)
	}
	p.follow(d, out, at, p.req.segments(d, at.CreateTXG, out.Final, false), step.Send.Flags)
	if latest, ok := t.Latest(); ok {
		p.losses.checkNamesFree(d, t, out, latest.CreateTXG)
	}
	return true
}

// tokenTarget returns the snapshot of a resume token, or why the token is unusable. The target
// may have forged it: its snapshots must exist on this source under the same names.
func (b bases) tokenTarget(d, t *zfs.Dataset, token zfs.Token, to zfs.Version) (zfs.Version, string) {
	at, ok := d.SnapshotOf(token.ToGUID)
	switch {
	case !ok:
		return at, fmt.Sprintf("its snapshot %s no longer exists on the source", token.ToName)
	case at.In(d.Name) != token.ToName:
		return at, fmt.Sprintf("its snapshot %s is now %s, which zfs send -t cannot find", token.ToName, at.In(d.Name))
	case token.Redacted || token.Saved:
		return at, "it belongs to a redacted or saved stream"
	case b.raw(d) && !token.Flags.Raw:
		return at, "its stream was not raw, but zxfer sends encrypted data raw"
	case d.Encrypted() && b.req.Decrypt && token.Flags.Raw:
		return at, "its stream was raw, but {{decrypt}} is set"
	case !b.raw(d) && token.Flags.Raw:
		return at, fmt.Sprintf("its stream was raw, but %s is not encrypted", d.Name)
	case at.CreateTXG > to.CreateTXG:
		return at, fmt.Sprintf("its snapshot @%s is newer than the requested @%s", at.Name, to.Name)
	case at.GUID != to.GUID && !b.req.Selects(at.Name):
		return at, fmt.Sprintf("its snapshot @%s is excluded", at.Name)
	case token.FromGUID != 0 && b.nameOf(d, token.FromGUID) == "":
		return at, fmt.Sprintf("its incremental source (GUID %d) no longer exists on the source", token.FromGUID)
	case t.Inconsistent() && b.req.Set["encryption"] != "" && !b.encryptedAsAsked(t):
		return at, "its encryption differs from the requested one"
	case t.Inconsistent():
		return at, ""
	}
	if latest, _ := t.Latest(); latest.GUID != token.FromGUID || written(t) > 0 {
		return at, "the target has changed since, so that it cannot be completed"
	}
	if b.req.Restore && t.Get("mounted") == "yes" { // see checkMounted
		return at, "the target is mounted, and writes during the transfer would make it fail"
	}
	return at, ""
}
