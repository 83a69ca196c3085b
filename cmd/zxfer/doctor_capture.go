package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/doctor"
)

// factsHead is the first line of a file of facts. A line "ROLE HOST" for each host follows. The
// files of a host are below its role.
const factsHead = "zxfer facts v1"

// writeFacts writes the hosts' archives into one file, which people publish.
func writeFacts(name string, archives []doctor.Capture) error {
	archives = withoutAddresses(archives)
	all := &txtar.Archive{Comment: []byte(factsHead + "\n")}
	for _, a := range archives {
		all.Comment = fmt.Appendf(all.Comment, "%s %s\n", a.Role, a.Host)
		for _, f := range txtar.Parse(a.Text).Files {
			all.Files = append(all.Files, txtar.File{Name: a.Role + "/" + f.Name, Data: f.Data})
		}
	}
	if err := os.WriteFile(name, txtar.Format(all), 0o644); err != nil {
		return fmt.Errorf("--capture: %w", err)
	}
	return nil
}

// withoutAddresses replaces addresses of hosts with their roles.
func withoutAddresses(archives []doctor.Capture) (out []doctor.Capture) {
	var replace []string
	for _, a := range archives {
		address := strings.Trim(a.Host[strings.LastIndexByte(a.Host, '@')+1:], "[]")
		if _, err := netip.ParseAddr(address); err == nil {
			replace = append(replace, "["+address+"]", a.Role, address, a.Role)
		}
	}
	r := strings.NewReplacer(replace...)
	for _, a := range archives {
		out = append(out, doctor.Capture{Role: a.Role, Host: r.Replace(a.Host), Text: []byte(r.Replace(string(a.Text)))})
	}
	return out
}

// readFacts reads a file of writeFacts.
func readFacts(name string) ([]doctor.Capture, error) {
	raw, err := readFile(name)
	if err != nil {
		return nil, fmt.Errorf("--facts: %w", err)
	}
	all := txtar.Parse(raw)
	head, hosts, _ := strings.Cut(string(all.Comment), "\n")
	if head != factsHead {
		return nil, fault.Usagef("zxfer doctor --capture FILE", "--facts %s: first line is not %q", name, factsHead)
	}
	var out []doctor.Capture
	for l := range strings.Lines(hosts) {
		role, host, ok := strings.Cut(strings.TrimSpace(l), " ")
		if !ok {
			continue
		}
		if slices.ContainsFunc(out, func(a doctor.Capture) bool { return a.Role == role }) {
			return nil, fault.Usagef("zxfer doctor --capture FILE", "--facts %s: two hosts have the role %q", name, role)
		}
		one := &txtar.Archive{}
		for _, f := range all.Files {
			if path, ok := strings.CutPrefix(f.Name, role+"/"); ok {
				one.Files = append(one.Files, txtar.File{Name: path, Data: f.Data})
			}
		}
		out = append(out, doctor.Capture{Role: role, Host: host, Text: txtar.Format(one)})
	}
	if len(out) == 0 {
		return nil, fault.Usagef("zxfer doctor --capture FILE", "--facts %s: no host", name)
	}
	return out, nil
}
