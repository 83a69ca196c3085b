package jobfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// maxHosts limits the number of hosts in a file.
const maxHosts = 10_000

// variable matches a variable in a job, such as {host}.
var variable = regexp.MustCompile(`\{([a-z][a-z0-9_]*)\}`)

// hostName matches a host name without its domain.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// member is a host of a job file.
type member struct {
	name   string
	groups []string
	vars   map[string]string // including "host"
	// anyOf is set if the member stands for any host that matches the patterns of this group.
	anyOf string

	address, rsh string
}

func (m *member) String() string {
	if m.anyOf != "" {
		return fmt.Sprintf("any of group %q", m.anyOf)
	}
	return quoted(m.name)
}

// text returns a string with the host's variables filled in, or "" if v is not a string.
func (m *member) text(v any) string {
	s, _ := substitute(v, func(n string) (string, bool) { v, ok := m.vars[n]; return v, ok }).(string)
	return s
}

// group is a [[host]] table of the file.
type group struct {
	table    *replicate.Host
	names    []string // lower-case short names
	patterns []string
}

func (g *group) has(short string) bool {
	return slices.Contains(g.names, short) || plan.Matches(g.patterns, short)
}

// readHosts checks the [[host]] tables and expands the ranges in their names.
func (inv *Inventory) readHosts() []error {
	var errs []error
	at := locations{name: inv.name, lines: inv.lines["host"]}
	seen, total := map[string]bool{}, 0
	for i := range inv.file.Hosts {
		h := &inv.file.Hosts[i]
		f := faults{at: fmt.Sprintf("%s%s: ", at.job(i), labeled("host", h.Name, i))}
		g := &group{table: h}
		f.checkName(h.Name)
		if seen[h.Name] && h.Name != "" {
			f.addf("", "two groups have this name")
		}
		seen[h.Name] = true
		names := h.Names
		if names == nil {
			names = []string{h.Name}
		}
		for _, n := range names {
			f.hostNames(g, n, maxHosts-total-len(g.names))
		}
		total += len(g.names)
		for _, k := range slices.Sorted(maps.Keys(h.Vars)) {
			switch {
			case k == "host" || k == "job" || !variable.MatchString("{"+k+"}"):
				f.addf("vars", `vars.%s: write lower-case letters, digits and "_"; {host} and {job} are taken`, k)
			case strings.ContainsAny(h.Vars[k], "{}\n\r\x00"):
				f.addf("vars", "vars.%s: %q contains a brace or a line break", k, h.Vars[k])
			}
			inv.vars[k] = true
		}
		if a := strings.ReplaceAll(cmp.Or(h.Address, "{host}"), "{host}", "h"); a != "" {
			if e, err := endpoint.Parse(a + ":x"); err != nil || e.Local() {
				f.addf("address", "address %q: write [user@]HOST, in which {host} is the host's name", h.Address)
			}
		}
		errs = append(errs, f.all()...)
		inv.groups = append(inv.groups, g)
	}
	return errs
}

// hostNames expands an entry of names and adds it to g. More than most hosts are an error.
func (f *faults) hostNames(g *group, entry string, most int) {
	all, err := expandRanges(entry, most)
	if err != nil {
		f.addf("names", "names: %w", err)
		return
	}
	for _, n := range all {
		switch {
		case strings.ContainsAny(n, "*?[\\"):
			if _, err := path.Match(n, ""); err != nil {
				f.addf("names", "names: %q is not a pattern; use *, ?, [a-z] and [1-20]", n)
			}
			g.patterns = append(g.patterns, strings.ToLower(n))
		case !hostName.MatchString(n):
			f.add("names", fault.Usagef("write its address into the key address: address = \"root@{host}.example.org\"",
				`names: %q is not a short host name: write letters, digits and "-"`, n))
		default:
			g.names = append(g.names, strings.ToLower(n))
		}
	}
}

// numberRange matches a range of numbers in a host name: web[1-20], web[01-20].
var numberRange = regexp.MustCompile(`\[([0-9]{1,6})-([0-9]{1,6})\]`)

// expandRanges expands the ranges of numbers in a name. More than most names are an error.
func expandRanges(entry string, most int) ([]string, error) {
	at := numberRange.FindStringSubmatchIndex(entry)
	if at == nil {
		if most < 1 {
			return nil, fmt.Errorf("more than %d hosts", maxHosts)
		}
		return []string{entry}, nil
	}
	before, low, high, after := entry[:at[0]], entry[at[2]:at[3]], entry[at[4]:at[5]], entry[at[1]:]
	from, _ := strconv.Atoi(low) // at most six digits
	to, _ := strconv.Atoi(high)
	if from > to {
		return nil, fmt.Errorf("%q: the range [%s-%s] is empty", entry, low, high)
	}
	if to-from >= most {
		return nil, fmt.Errorf("%q: more than %d hosts", entry, maxHosts)
	}
	var out []string
	for n := from; n <= to; n++ {
		more, err := expandRanges(fmt.Sprintf("%s%0*d%s", before, len(low), n, after), most-len(out))
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// members returns all named hosts, and a stand-in for each group with patterns.
func (inv *Inventory) members() []*member {
	var out []*member
	for _, n := range inv.Names() {
		out = append(out, inv.member(n))
	}
	for _, g := range inv.groups {
		if len(g.patterns) > 0 {
			m := inv.mergeGroups("any-"+strings.ToLower(g.table.Name), func(o *group) bool { return o == g })
			m.anyOf = g.table.Name
			out = append(out, m)
		}
	}
	return out
}

// member returns the host with that name, or nil if it is in no group. If several groups set an
// option, the last one applies.
func (inv *Inventory) member(name string) *member {
	short := ShortName(name)
	return inv.mergeGroups(short, func(g *group) bool { return g.has(short) })
}

// ShortName returns a host name in lower case and without its domain, as in job files.
func ShortName(host string) string {
	short, _, _ := strings.Cut(host, ".")
	return strings.ToLower(short)
}

func (inv *Inventory) mergeGroups(short string, in func(*group) bool) *member {
	m := &member{name: short, address: short, vars: map[string]string{}}
	for _, g := range inv.groups {
		if !in(g) {
			continue
		}
		m.groups = append(m.groups, g.table.Name)
		maps.Copy(m.vars, g.table.Vars)
		m.rsh = cmp.Or(g.table.RSH, m.rsh)
		m.address = cmp.Or(strings.ReplaceAll(g.table.Address, "{host}", short), m.address)
	}
	m.vars["host"] = short
	if m.groups == nil {
		return nil
	}
	return m
}

// hasJob reports whether a host has a job.
func (inv *Inventory) hasJob(h *member, job map[string]any) bool {
	hosts, limited := job["hosts"].([]any)
	return !limited || slices.ContainsFunc(hosts, func(v any) bool {
		s, _ := v.(string)
		return slices.Contains(h.groups, s) || h.anyOf == "" && ShortName(s) == h.name
	})
}

// Names returns the named hosts in file order. It omits hosts that only match a pattern.
func (inv *Inventory) Names() (out []string) {
	seen := map[string]bool{}
	for _, g := range inv.groups {
		for _, n := range g.names {
			if !seen[n] {
				seen[n] = true
				out = append(out, n)
			}
		}
	}
	return out
}

// Groups returns the names of the groups in file order.
func (inv *Inventory) Groups() (out []string) {
	for _, g := range inv.groups {
		out = append(out, g.table.Name)
	}
	return out
}

// Patterns returns all host patterns.
func (inv *Inventory) Patterns() (out []string) {
	for _, g := range inv.groups {
		out = append(out, g.patterns...)
	}
	return out
}

// AddressOf returns a host's address, [user@]HOST, and its remote shell, "" for ssh. An unknown host
// is reached by its name.
func (inv *Inventory) AddressOf(name string) (address, rsh string) {
	if m := inv.member(name); m != nil {
		return m.address, m.rsh
	}
	return name, ""
}

// Resolve resolves a name to the hosts and patterns of a group, or to one host. It returns false for
// unknown names and for addresses.
func (inv *Inventory) Resolve(name string) (hosts, patterns []string, found bool) {
	for _, g := range inv.groups {
		if g.table.Name == name {
			return g.names, g.patterns, true
		}
	}
	if strings.ContainsAny(name, ".@") || inv.member(name) == nil {
		return nil, nil, false
	}
	return []string{ShortName(name)}, nil, true
}

// knownHosts checks that [[host]] tables define the hosts of a job.
func (inv *Inventory) knownHosts(i int, job map[string]any) error {
	hosts, limited := job["hosts"].([]any)
	f := faults{at: inv.jobAt(i)}
	if limited && len(hosts) == 0 {
		f.add("hosts", fault.Usagef("omit the key, to run the job on all hosts", "hosts is empty: no host would run the job"))
	}
	for _, v := range hosts {
		s, _ := v.(string)
		if inv.member(s) == nil && !slices.ContainsFunc(inv.groups, func(g *group) bool { return g.table.Name == s }) {
			f.add("hosts", fault.Usagef(fmt.Sprintf("add it: [[host]] with name = %q", s), "hosts: %q is not the name of a [[host]] or of one of its hosts", s))
		}
	}
	return errors.Join(f.all()...)
}

// knownVariables checks the variables in keys whose values cannot contain braces.
func (inv *Inventory) knownVariables(i int, job map[string]any) error {
	f := faults{at: inv.jobAt(i)}
	check := func(key string, v any) {
		s, _ := v.(string)
		for _, m := range variable.FindAllStringSubmatch(s, -1) {
			if !inv.vars[m[1]] {
				known := strings.Join(slices.Sorted(maps.Keys(inv.vars)), "}, {")
				f.add(key, fault.Usagef(fmt.Sprintf("write vars = { %s = \"...\" } into a [[host]]; the file has {%s}", m[1], known), "%s: no host has {%s}", key, m[1]))
			}
		}
	}
	for _, key := range []string{"name", "source", "schedule"} {
		check(key, job[key])
	}
	targets, _ := job["target"].([]any)
	for _, v := range targets {
		t, _ := v.(map[string]any)
		check("target.name", t["name"])
		check("target.to", t["to"])
	}
	return errors.Join(f.all()...)
}

// unknownHost returns the error for a host that is in no group.
func (inv *Inventory) unknownHost(name string) error {
	shown, first := cmp.Or(ShortName(name), "without a name"), inv.Names()
	more := ""
	if len(first) > 10 {
		first, more = first[:10], fmt.Sprintf(" and %d more", len(first)-10)
	}
	for _, g := range inv.groups {
		if len(g.patterns) > 0 {
			more += fmt.Sprintf("; group %q matches %s", g.table.Name, strings.Join(g.patterns, ", "))
		}
	}
	return fault.Usagef("add it to the names of a [[host]], or name this host: --host NAME\nthe file has: "+strings.TrimPrefix(strings.Join(first, ", ")+more, "; "),
		"%s: host %q is in no [[host]] of this file", inv.name, shown)
}
