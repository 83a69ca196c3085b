package importer

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// syncoidFlags maps what is left of a command's flags.
func (s *state) syncoidFlags(c *command, d *draft, source, to endpoint.Endpoint) error {
	t := &d.Targets[0]
	dropped := func(name, why string) {
		if c.has(name) {
			s.note(d, c.where, "--"+name, Dropped, "%s", why)
		}
	}
	for _, name := range []string{"source-bwlimit", "target-bwlimit", "mbuffer-size"} {
		for _, v := range c.all(name) {
			n, err := size.Parse(v)
			if err != nil {
				return fault.Usagef("", "%s: --%s=%s: %w", c.where, name, v, err)
			}
			switch {
			case name == "mbuffer-size":
				d.Transfer.Buffer = size.Size(n)
			case d.Transfer.Bandwidth == 0 || size.Size(n) < d.Transfer.Bandwidth:
				d.Transfer.Bandwidth = size.Size(n)
			}
		}
	}
	for _, v := range c.all("compress") {
		switch v {
		case "none":
			d.Transfer.Compress = "off"
		case "zstd-fast":
			d.Transfer.Compress = "zstd:3" // syncoid's level
		case "zstd-slow":
			d.Transfer.Compress = "zstd:19"
		default:
			s.note(d, c.where, "--compress="+v, Changed, "compressed by zstd where that gains anything")
		}
	}
	for _, re := range append(c.all("exclude"), c.all("exclude-datasets")...) {
		s.excludeDatasets(c, d, re, source.Name)
	}
	if c.has("preserve-properties") {
		t.Properties.Carry = true
	}
	s.sendOptions(c, d)
	if err := s.recvOptions(c, t, d); err != nil {
		return err
	}
	s.ssh(c, d)
	s.direct(c, d)
	for _, e := range []endpoint.Endpoint{source, to} {
		user, _, named := strings.Cut(e.Host, "@")
		if named && user != "root" && !c.has("no-privilege-elevation") {
			s.note(d, c.where, e.String(), Changed, "syncoid uses sudo there; zxfer does not: zxfer replicate check prints the zfs allow line that %s needs", user)
		}
	}
	if c.has("no-privilege-elevation") {
		s.note(d, c.where, "--no-privilege-elevation", Changed, "sudo is never used; to run the job as a user other than root write user = NAME, and zxfer replicate check prints the zfs allow line")
	}
	if !c.has("no-rollback") {
		s.note(d, c.where, c.describe(), ByHand, "syncoid rolls back a copy that was modified, as mounted ones are; zxfer never does: zfs set readonly=on %s there, and where zxfer replicate check refuses a copy, run the zfs rollback that it names, once", to.Name)
	}
	dropped("force-delete", "nothing on a target is destroyed to make a stream fit; the run explains the ways out")
	dropped("no-clone-rollback", "nothing on a target is rolled back")
	dropped("keep-sync-snap", "a job's snapshots stay until a [job.retention] lets them go")
	dropped("no-resume", "what was interrupted is always resumed")
	dropped("no-clone-handling", "a clone is sent as a dataset of its own")
	dropped("no-command-checks", "the checks before a transfer can be passed over one by one: transfer.skip_checks")
	for _, v := range c.all("identifier") {
		s.note(d, c.where, "--identifier="+v, Changed, "the names of a job's snapshots hold the job's name instead")
	}
	if c.has("delete-target-snapshots") {
		s.note(d, c.where, "--delete-target-snapshots", ByHand, "a target keeps what its own grid says, whatever the source has: write [job.target.retention]")
	}
	return nil
}

// specialOptions takes the value of --sendoptions and --recvoptions apart, as
// syncoid does: "L c e", "Lce", "-L -c", "o compression=lz4", "x recordsize".
func specialOptions(value string) []option {
	var out []option
	words := strings.Fields(value)
	for i := 0; i < len(words); i++ {
		letters := strings.TrimPrefix(words[i], "-")
		for k, letter := range letters {
			o := option{name: string(letter)}
			if strings.ContainsRune("oxX", letter) {
				if rest := letters[k+1:]; rest != "" {
					o.value = rest
				} else if i+1 < len(words) {
					i++
					o.value = words[i]
				}
				out = append(out, o)
				break
			}
			out = append(out, o)
		}
	}
	return out
}

func (s *state) sendOptions(c *command, d *draft) {
	for _, v := range c.all("sendoptions") {
		for _, o := range specialOptions(v) {
			switch o.name {
			case "L", "c", "e", "w", "v", "P", "s":
				// Chosen by what the dataset and the target are; raw always.
			case "p", "b":
				d.Targets[0].Properties.Carry = true
			case "R":
				d.Recursive, d.Targets[0].Properties.Carry = true, true
				s.note(d, c.where, "--sendoptions R", Changed, "the datasets below are sent one by one; what is gone from the source stays on the target")
			default:
				s.note(d, c.where, "--sendoptions "+o.name, Dropped, "zxfer has no such choice")
			}
		}
	}
}

func (s *state) recvOptions(c *command, t *replicate.Target, d *draft) error {
	for _, v := range c.all("recvoptions") {
		for _, o := range specialOptions(v) {
			what := strings.TrimSpace("--recvoptions " + o.name + " " + o.value)
			switch o.name {
			case "u", "s", "v":
				// Always.
			case "o":
				name, value, ok := strings.Cut(o.value, "=")
				if err := zfs.CheckProperty(name); err != nil || !ok {
					return fault.Usagef("write o NAME=VALUE", "%s: %s: %q sets no property", c.where, what, o.value)
				}
				if t.Properties.Set == nil {
					t.Properties.Set = map[string]string{}
				}
				t.Properties.Set[name] = value
			case "x":
				if err := zfs.CheckProperty(o.value); err != nil {
					return fault.Usagef("write x NAME", "%s: %s: %q is no property", c.where, what, o.value)
				}
				if !slices.Contains(t.Properties.Exclude, o.value) {
					t.Properties.Exclude = append(t.Properties.Exclude, o.value)
				}
			case "F":
				s.note(d, c.where, what, Dropped, "nothing on a target is rolled back to make a stream fit")
			case "d", "e":
				s.note(d, c.where, what, ByHand, "it changes the names of targets: a target that ends in \"/\" receives the source's path below its pool")
			default:
				s.note(d, c.where, what, Dropped, "zxfer has no such choice")
			}
		}
	}
	// What is both set and excluded is set, as zfs receive has it.
	t.Properties.Exclude = slices.DeleteFunc(t.Properties.Exclude, func(name string) bool {
		_, set := t.Properties.Set[name]
		return set
	})
	return nil
}

// ssh maps the flags that syncoid hands to ssh.
func (s *state) ssh(c *command, d *draft) {
	argv := []string{"ssh"}
	for _, o := range c.options {
		switch o.name {
		case "sshconfig":
			argv = append(argv, "-F", o.value)
		case "sshkey":
			argv = append(argv, "-i", o.value)
		case "sshport":
			argv = append(argv, "-p", o.value)
		case "sshcipher":
			argv = append(argv, "-c", o.value)
			s.note(d, c.where, "--sshcipher="+o.value, Changed, "only the control connection goes over ssh, and data with wire = \"ssh\"")
		case "sshoption":
			argv = append(argv, "-o", o.value)
		}
	}
	if len(argv) > 1 {
		d.Transfer.RSH = shellquote.Join(argv...)
	}
}

// direct maps --insecure-direct-connection: where the target listens.
func (s *state) direct(c *command, d *draft) {
	for _, v := range c.all("insecure-direct-connection") {
		connect, _, _ := strings.Cut(v, ",")
		m := regexp.MustCompile(`^\[?([0-9a-fA-F.:]+?)\]?:([0-9]{1,5})$`).FindStringSubmatch(connect)
		what := "--insecure-direct-connection=" + v
		tr := d.Transfer
		if m != nil {
			if _, err := netip.ParseAddr(m[1]); err == nil && tr.Ports.UnmarshalText([]byte(m[2])) == nil {
				tr.DataAddress, tr.Dial = m[1], "source"
			}
		}
		if tr.DataAddress == "" {
			s.note(d, c.where, what, ByHand, "data has a connection of its own anyhow, authenticated and by default encrypted: write transfer.data_address and transfer.ports where it must be a certain one")
			continue
		}
		d.Transfer = tr
		s.note(d, c.where, what, Changed, "%s", fmt.Sprintf("the target listens at %s, port %s; the connection is authenticated, and encrypted unless the stream already is", m[1], m[2]))
	}
}
