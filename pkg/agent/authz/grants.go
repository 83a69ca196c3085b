package authz

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Policy lists what an agent may do. The zero value permits nothing. Each granted dataset
// includes its descendants.
type Policy struct {
	// Receive and Send are datasets that streams may go to or come from.
	Receive []string
	Send    []string
	// Decrypted lists the datasets in Send that may be read as plain text if encrypted. Others
	// may be sent raw only.
	Decrypted []string
	// Rekeyed lists the datasets in Receive whose key a raw stream may replace despite
	// AppendOnly.
	Rekeyed []string
	// Restored are datasets that a restore may receive into. At its end, it may undo the
	// precautions that keep them read-only and unmounted.
	Restored []string
	// Heal are datasets whose damage may be listed and healed.
	Heal []string
	// Drilled are datasets that may be cloned for reading. The clones may be destroyed.
	Drilled []string
	// Rotated are copies that may be renamed with their descendants, to be replaced.
	Rotated []string
	// Followed are datasets whose descendants may be renamed to other names below the same dataset.
	Followed []string
	// Removed are datasets whose descendants may be destroyed with their snapshots, if they
	// belong to one job only.
	Removed []string
	// AppendOnly forbids destroying snapshots and bookmarks, releasing holds that are not
	// zxfer's, and replacing the key of an encrypted copy.
	AppendOnly bool
	// Peers are the addresses that the agent may connect to, and that an offer may name as the
	// only client of its listener.
	Peers []netip.Prefix
}

// Grant describes a grant for help.
type Grant struct{ Verb, Help string }

// grant holds the datasets granted by a verb. extra grants the same and more; its datasets are in
// both lists.
type grant struct {
	Grant
	extra                   Grant
	datasets, extraDatasets *[]string
}

func (p *Policy) grants() []grant {
	return []grant{
		{Grant{"receive", "receive planned snapshots, read-only and unmounted"},
			Grant{"receive-rekey", "receive; raw streams may replace keys despite --append-only"}, &p.Receive, &p.Rekeyed},
		{Grant{"restore", "receive; when restored, make writable, mount, inherit keys"}, Grant{}, &p.Restored, nil},
		{Grant{"send", "read and snapshot; encrypted datasets only as raw streams"},
			Grant{"send-decrypted", "send; also read encrypted datasets as plain text"}, &p.Send, &p.Decrypted},
		{Grant{"heal", "list damage, repair it with corrective streams, and scrub"}, Grant{}, &p.Heal, nil},
		{Grant{"drill", "clone and read for restore tests, and destroy these clones"}, Grant{}, &p.Drilled, nil},
		{Grant{"rotate", "rename diverged copies to NAME.zxfer-TIME; needs receive"}, Grant{}, &p.Rotated, nil},
		{Grant{"follow", "rename copies of renamed datasets below it; needs receive"}, Grant{}, &p.Followed, nil},
		{Grant{"remove", "destroy copies of deleted datasets; not with --append-only"}, Grant{}, &p.Removed, nil},
	}
}

// AllGrants returns all grants.
func AllGrants() (out []Grant) {
	for _, of := range new(Policy).grants() {
		if out = append(out, of.Grant); of.extra.Verb != "" {
			out = append(out, of.extra)
		}
	}
	return out
}

// Parse parses grants as written in authorized_keys. Peers are IP addresses or prefixes
// ("10.0.0.0/8"). Errors have class fault.Usage.
func Parse(allow, peers []string, appendOnly bool) (*Policy, error) {
	p := &Policy{AppendOnly: appendOnly}
	for _, g := range allow {
		verb, dataset, _ := strings.Cut(g, "=")
		if _, err := zfs.ParseDataset(dataset); err != nil {
			return nil, fault.Usagef("zxfer help grants", "--allow %s: %w", g, err)
		}
		i := slices.IndexFunc(p.grants(), func(of grant) bool { return verb == of.Verb || verb == of.extra.Verb && of.extraDatasets != nil })
		if i < 0 {
			return nil, fault.Usagef("zxfer help grants", "--allow %s: there is no grant %q", g, verb)
		}
		of := p.grants()[i]
		*of.datasets = append(*of.datasets, dataset)
		if verb == of.extra.Verb {
			*of.extraDatasets = append(*of.extraDatasets, dataset)
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
			return nil, fault.Usagef("use an IP address, or a prefix such as 10.1.0.0/16", "--peer %s is not an address", s)
		}
		p.Peers = append(p.Peers, prefix.Masked())
	}
	if err := p.checkConsistent(); err != nil {
		return nil, err
	}
	if len(allow) == 0 && (appendOnly || len(peers) > 0) {
		return nil, fault.Usagef("add --allow VERB=DATASET; zxfer help grants lists the verbs", "--allow is missing: the restricted agent would permit nothing")
	}
	return p, nil
}

// checkConsistent refuses grants that have no effect together with the others.
func (p *Policy) checkConsistent() error {
	if p.AppendOnly && len(p.Removed) > 0 {
		return fault.Usagef("omit one of them", "--allow remove=%s has no effect with --append-only, which forbids destroying anything", p.Removed[0])
	}
	for verb, all := range map[string][]string{"rotate": p.Rotated, "follow": p.Followed, "remove": p.Removed} {
		for _, d := range all {
			if !within(d, p.receivable()) && !slices.ContainsFunc(p.receivable(), func(r string) bool { return within(r, []string{d}) }) {
				return fault.Usagef("add --allow receive="+d, "--allow %s=%s has no effect without permission to receive there", verb, d)
			}
		}
	}
	return nil
}

// Flags returns the agent flags that express the policy.
func (p *Policy) Flags() []string {
	var flags []string
	for _, of := range p.grants() {
		for _, d := range *of.datasets {
			verb := of.Verb
			if of.extraDatasets != nil && slices.Contains(*of.extraDatasets, d) {
				verb = of.extra.Verb
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

// ParseFlags parses what Flags returned, for example from another host.
func ParseFlags(flags []string) (*Policy, error) {
	var allow, peers []string
	appendOnly := false
	for i := 0; i < len(flags); i++ {
		value := ""
		if i+1 < len(flags) {
			value = flags[i+1]
		}
		switch flags[i] {
		case "--append-only":
			appendOnly = true
			continue
		case "--allow":
			allow = append(allow, value)
		case "--peer":
			peers = append(peers, value)
		default:
			return nil, fmt.Errorf("unknown flag of a restricted agent: %q", clipName(flags[i]))
		}
		i++
	}
	return Parse(allow, peers, appendOnly)
}

// Lacks returns how the flags of a key must change so that it permits an operation on a dataset, or "" if
// it permits it. copied is set on the host of a copy, not of a source.
func (p *Policy) Lacks(op hosts.Operation, dataset string, copied bool) string {
	rule := rules()[op.Name()]
	if rule == nil {
		return ""
	}
	verbs, destroys := rule.needed()
	if len(verbs) == 0 {
		return ""
	}
	verb := verbs[0]
	if copied {
		verb = verbs[len(verbs)-1]
	}
	change := ""
	if !within(dataset, p.granted(verb)) {
		change = "add " + allowWords(verb, dataset)
	}
	if destroys && p.AppendOnly {
		if change != "" {
			change += ", and "
		}
		change += "omit --append-only"
	}
	return change
}

// granted returns the datasets of a verb.
func (p *Policy) granted(verb string) []string {
	if verb == "receive" {
		return p.receivable()
	}
	for _, of := range p.grants() {
		if of.Verb == verb {
			return *of.datasets
		}
	}
	return nil
}

// String returns the flags, joined by spaces.
func (p *Policy) String() string { return strings.Join(p.Flags(), " ") }

// within reports whether a dataset is one of roots or a descendant: "tank/vm" includes
// "tank/vm/a", not "tank/vm2".
func within(dataset string, roots []string) bool {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return false
	}
	return slices.ContainsFunc(roots, func(root string) bool {
		rest, ok := strings.CutPrefix(dataset, root)
		return ok && (rest == "" || rest[0] == '/')
	})
}

// readable reports whether a dataset's properties and listing may be read.
func (p *Policy) readable(dataset string) bool {
	return within(dataset, p.receivable()) || within(dataset, p.Send) || within(dataset, p.Heal) || within(dataset, p.Drilled)
}

// receivable returns the datasets that streams may be received into.
func (p *Policy) receivable() []string { return slices.Concat(p.Receive, p.Restored) }

// isAncestor reports whether a dataset is an ancestor of a granted one.
func (p *Policy) isAncestor(dataset string) bool {
	if dataset == "" {
		return false
	}
	return slices.ContainsFunc(slices.Concat(p.receivable(), p.Send, p.Heal, p.Drilled), func(root string) bool {
		return strings.HasPrefix(root, dataset+"/")
	})
}

func (p *Policy) isPeer(address string) bool {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(p.Peers, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}
