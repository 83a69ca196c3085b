package authz

import (
	"net/netip"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Policy is what an agent may do. The zero value allows nothing.
type Policy struct {
	// Receive and Send are datasets; each grant includes all below them.
	Receive []string
	Send    []string
	// Decrypted are those of Send whose content may be read as plain text where
	// it is encrypted. Of others an encrypted dataset leaves raw only.
	Decrypted []string
	// Rekeyed are those of Receive where a raw stream may replace the key of what
	// is there, also with AppendOnly.
	Rekeyed []string
	// Restored are datasets that a restore may bring back: received as by Receive, and
	// given back in the end what kept them from being changed and mounted.
	Restored []string
	// Heal are datasets whose damage may be known and healed.
	Heal []string
	// Drilled are datasets of which clones may be made, to be read, and destroyed again.
	Drilled []string
	// Rotated are datasets that may be set aside: renamed, with all that is below, and
	// begun anew.
	Rotated []string
	// Removed are datasets that may be destroyed, with all their snapshots, where these
	// are a job's and nobody else's.
	Removed []string
	// AppendOnly forbids destroying snapshots and bookmarks, releasing holds
	// that are not zxfer's own, and replacing the key of an encrypted copy.
	AppendOnly bool
	// Peers are the addresses that the agent may connect to, and that may be
	// named as the only ones to connect to its listeners.
	Peers []netip.Prefix
}

// Grants is how a grant is written, for messages and help.
const Grants = "receive=DATASET, receive-rekey=DATASET, restore=DATASET, send=DATASET, send-decrypted=DATASET, heal=DATASET, drill=DATASET, rotate=DATASET or remove=DATASET"

// grants are the datasets that a grant names: all of them, and those that a second
// verb gives more.
type grants struct {
	verb, more string
	all, those *[]string
}

func (p *Policy) grants() []grants {
	return []grants{{"receive", "receive-rekey", &p.Receive, &p.Rekeyed}, {"restore", "restore", &p.Restored, new([]string)}, {"send", "send-decrypted", &p.Send, &p.Decrypted},
		{"heal", "heal", &p.Heal, new([]string)}, {"drill", "drill", &p.Drilled, new([]string)}, {"rotate", "rotate", &p.Rotated, new([]string)},
		{"remove", "remove", &p.Removed, new([]string)}}
}

// Verbs are those of all grants.
func Verbs() (out []string) {
	for _, of := range new(Policy).grants() {
		if out = append(out, of.verb); of.more != of.verb {
			out = append(out, of.more)
		}
	}
	return out
}

// Parse reads grants as they are written in authorized_keys. Peers are IP
// addresses or prefixes ("10.0.0.0/8").
func Parse(allow, peers []string, appendOnly bool) (*Policy, error) {
	p := &Policy{AppendOnly: appendOnly}
	for _, g := range allow {
		verb, dataset, _ := strings.Cut(g, "=")
		if _, err := zfs.ParseDataset(dataset); err != nil {
			return nil, fault.Usagef("write "+Grants, "--allow %s: %w", g, err)
		}
		i := slices.IndexFunc(p.grants(), func(of grants) bool { return verb == of.verb || verb == of.more })
		if i < 0 {
			return nil, fault.Usagef("write "+Grants, "--allow %s: there is no grant %q", g, verb)
		}
		of := p.grants()[i]
		*of.all = append(*of.all, dataset)
		if verb == of.more {
			*of.those = append(*of.those, dataset)
		}
	}
	for _, s := range peers {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil {
				a = a.Unmap().WithZone("")
				prefix = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil {
			return nil, fault.Usagef("write an IP address, or a prefix such as 10.1.0.0/16", "--peer %s is not an address", s)
		}
		p.Peers = append(p.Peers, prefix.Masked())
	}
	if err := p.contradicts(); err != nil {
		return nil, err
	}
	if len(allow) == 0 && (appendOnly || len(peers) > 0) {
		return nil, fault.Usagef("write --allow "+Grants, "a restricted agent that may do nothing: --allow is missing")
	}
	return p, nil
}

// contradicts refuses grants that can have no effect beside what else there is.
func (p *Policy) contradicts() error {
	if p.AppendOnly && len(p.Removed) > 0 {
		return fault.Usagef("leave one of them out", "--allow remove=%s has no effect with --append-only, which lets nothing be destroyed", p.Removed[0])
	}
	for verb, all := range map[string][]string{"rotate": p.Rotated, "remove": p.Removed} {
		for _, d := range all {
			if !below(d, p.receivable()) && !slices.ContainsFunc(p.receivable(), func(r string) bool { return below(r, []string{d}) }) {
				return fault.Usagef("add --allow receive="+d, "--allow %s=%s has no effect: nothing may be received there", verb, d)
			}
		}
	}
	return nil
}

// Flags are those of an agent that has the policy.
func (p *Policy) Flags() []string {
	var flags []string
	for _, of := range p.grants() {
		for _, d := range *of.all {
			verb := of.verb
			if slices.Contains(*of.those, d) {
				verb = of.more
			}
			flags = append(flags, "--allow", verb+"="+d)
		}
	}
	if p.AppendOnly {
		flags = append(flags, "--append-only")
	}
	for _, a := range p.Peers {
		s := a.String()
		if a.IsSingleIP() {
			s = a.Addr().String()
		}
		flags = append(flags, "--peer", s)
	}
	return flags
}

// String is the policy as its flags.
func (p *Policy) String() string { return strings.Join(p.Flags(), " ") }

// below tells whether a dataset is one of roots or below one: "tank/vm" has
// "tank/vm/a", not "tank/vm2".
func below(dataset string, roots []string) bool {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return false
	}
	return slices.ContainsFunc(roots, func(root string) bool {
		rest, ok := strings.CutPrefix(dataset, root)
		return ok && (rest == "" || rest[0] == '/')
	})
}

// granted tells whether a dataset may be looked at.
func (p *Policy) granted(dataset string) bool {
	return below(dataset, p.receivable()) || below(dataset, p.Send) || below(dataset, p.Heal) || below(dataset, p.Drilled)
}

// receivable are the datasets that streams may come into.
func (p *Policy) receivable() []string { return slices.Concat(p.Receive, p.Restored) }

// above tells whether a dataset is an ancestor of a granted one.
func (p *Policy) above(dataset string) bool {
	if dataset == "" {
		return false
	}
	return slices.ContainsFunc(slices.Concat(p.receivable(), p.Send, p.Heal, p.Drilled), func(root string) bool {
		return strings.HasPrefix(root, dataset+"/")
	})
}

func (p *Policy) peer(address string) bool {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(p.Peers, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}
