package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// syncoid makes a job for every syncoid command in a text, also in a crontab, a script, or after
// ExecStart= of a unit.
func (s *state) syncoid(file, text string) error {
	const joint = "\x00" // marks a continued line
	first, number := len(s.drafts), 1
	for raw := range strings.SplitSeq(strings.NewReplacer("\\\r\n", joint, "\\\n", joint).Replace(text), "\n") {
		line, where := strings.TrimSpace(strings.ReplaceAll(raw, joint, " ")), fmt.Sprintf("%s:%d", file, number)
		number += 1 + strings.Count(raw, joint)
		if line == "" || strings.ContainsAny(line[:1], "#;[") {
			continue
		}
		if !strings.Contains(line, "syncoid") {
			if !regexp.MustCompile(`^[A-Za-z_]\w*\s*=`).MatchString(line) {
				s.addEntry(nil, where, line, "nothing: it is not a syncoid command")
			}
			continue
		}
		times, spec, rest, ok := cutSchedule(line)
		commands, err := findCommands(where, strings.TrimLeft(strings.TrimPrefix(rest, "ExecStart="), "-@:+!"))
		if err != nil {
			return err
		}
		for _, c := range commands {
			d, err := s.syncoidJob(c)
			if err != nil {
				return err
			}
			d.Schedule = spec
			switch {
			case !ok:
				s.addEntry(d, where, times, "write schedule (systemd.time(7)): no calendar event matches exactly, and without one the job runs only manually")
			case spec == "":
				s.addEntry(d, where, "schedule", "write schedule: the command has no cron time, and without a schedule the job runs only manually")
			}
		}
	}
	if len(s.drafts) == first {
		return fault.Usagef("write syncoid [FLAGS] SOURCE TARGET", "%s: contains no syncoid command", file)
	}
	return nil
}

// syncoidJob adds the draft of a command.
func (s *state) syncoidJob(c *command) (*draft, error) {
	source, err := syncoidName(c.where, c.source)
	if err != nil {
		return nil, err
	}
	to, err := syncoidName(c.where, c.target)
	if err != nil {
		return nil, err
	}
	d := s.add(&draft{where: c.where, preferredName: nameFor(source.Name), Job: replicate.Job{
		Source: source.String(), Recursive: c.has("recursive"),
		Snapshots: replicate.Snapshots{Adopt: []string{"*"}, SnapshotLimits: replicate.SnapshotLimits{LatestOnly: c.has("no-stream")}},
		Targets:   []replicate.Target{{Name: targetName, To: to.String()}},
	}})
	if !strings.Contains(to.Name, "/") && strings.Contains(source.Name, "/") {
		d.noTarget = true
		s.addEntry(d, c.where, c.target, "write the target: syncoid replaces the pool's root dataset, but zxfer creates the source's path below a pool")
	}
	if c.has("skip-parent") && d.Recursive {
		d.Exclude = []string{"."}
	}
	if d.Recursive {
		s.addEntry(d, c.where, "syncoid:sync", "if a dataset has this property: zfs set syncoid:sync=true %s, and property = \"syncoid:sync\" in the job, which then excludes datasets with false; for lists of hosts, use one property per job", zfs.CommandLine([]string{source.Name}))
	}
	if !c.has("no-sync-snap") {
		d.Snapshots.Take = replicate.DefaultTemplate
		s.addEntry(d, c.where, "sync snapshots", "limit snapshots.adopt to snapshots that may be destroyed, then write [job.retention]; until then zxfer keeps all its snapshots (zxfer_*), while syncoid keeps only its most recent one")
	}
	if err := d.syncoidTransfer(c); err != nil {
		return nil, err
	}
	for _, o := range c.options {
		if err := s.syncoidFlag(d, c, o); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// syncoidName parses a name as syncoid does. "@" or a colon before the first "/" means another
// host.
func syncoidName(where, name string) (endpoint.Endpoint, error) {
	e, err := endpoint.Parse(strings.TrimPrefix(name, "@"))
	if err != nil {
		return e, fault.Usagef(fault.HintOf(err), "%s: %w", where, err)
	}
	if strings.ContainsAny(name, "$`*") {
		return e, fault.Usagef("replace it with its value", "%s: %q contains a shell variable or pattern", where, name)
	}
	e.Name, err = dataset(where, e.Name)
	return e, err
}

// syncoidTransfer converts rate limits, the buffer size and options for ssh.
func (d *draft) syncoidTransfer(c *command) error {
	argv := []string{"ssh"}
	for _, o := range c.options {
		if flag := map[string]string{"sshconfig": "-F", "sshkey": "-i", "sshport": "-p", "sshcipher": "-c", "sshoption": "-o"}[o.name]; flag != "" {
			argv = append(argv, flag, o.value)
		}
		if !slices.Contains([]string{"source-bwlimit", "target-bwlimit", "mbuffer-size"}, o.name) {
			continue
		}
		n, err := size.Parse(o.value)
		if err != nil {
			return fault.Usagef("", "%s: --%s=%s: %w", c.where, o.name, o.value, err)
		}
		if o.name == "mbuffer-size" {
			d.Transfer.Buffer = size.Size(n)
		} else {
			d.limit(size.Size(n))
		}
	}
	d.shell(argv)
	return nil
}

// shell sets the remote shell if ssh has options.
func (d *draft) shell(argv []string) {
	if len(argv) > 1 {
		d.Transfer.RSH = shellquote.Join(argv...)
	}
}

// limit sets the bandwidth limit. The lower of two limits counts.
func (d *draft) limit(rate size.Size) {
	if d.Transfer.Bandwidth == 0 || rate < d.Transfer.Bandwidth {
		d.Transfer.Bandwidth = rate
	}
}

// syncoidFlag converts an independent flag or adds an entry for it.
func (s *state) syncoidFlag(d *draft, c *command, o option) error {
	t := &d.Targets[0]
	switch o.name {
	case "compress":
		level, ok := map[string]string{"none": "off", "zstd-fast": "zstd:3", "zstd-slow": "zstd:19"}[o.value]
		if d.Transfer.Compress = level; ok {
			return nil
		}
	case "preserve-properties":
		t.Properties.Carry = true
	case "sendoptions":
		if m := regexp.MustCompile(`^[-LcewvPs ]*$`); m.MatchString(o.value) {
			return nil // zxfer chooses these by dataset and target, and always sends raw
		}
	case "recvoptions":
		rest, err := recvOptions(c, t, o.value)
		if err != nil || rest == "" {
			return err
		}
		o.value = rest
	case "exclude", "exclude-datasets":
		if !d.Recursive {
			return nil // the flag has no effect then
		}
		at, err := endpoint.Parse(d.Source)
		if err != nil {
			return err
		}
		if below, ok := belowSource(o.value, at.Name); ok {
			d.Exclude = append(d.Exclude, "re:"+below)
			return nil
		}
		d.noSource = true // excluded datasets must not be sent because a pattern is missing
	case "include-snaps":
		pattern := "re:" + o.value
		if _, err := plan.ParsePattern(pattern); err == nil {
			if slices.Equal(d.Snapshots.Adopt, []string{"*"}) {
				d.Snapshots.Adopt = nil
			}
			d.Snapshots.Adopt = append(d.Snapshots.Adopt, pattern)
			return nil
		}
	}
	if do := syncoidAdvice()[o.name]; do != "" {
		what := "--" + o.name
		if syncoidFlags()[o.name] {
			what += "=" + o.value
		}
		s.addEntry(d, c.where, what, "%s", do)
	}
	return nil
}

// syncoidAdvice returns what to do about flags that are not converted.
func syncoidAdvice() map[string]string {
	return map[string]string{
		"compress":                   `write transfer.compress = "zstd:N" or "off": otherwise zstd compresses if that is faster`,
		"delete-target-snapshots":    "write mirror = { limit = 100 } into the target, which does the same within limits, or a separate policy: [job.target.retention]",
		"exclude":                    "write exclude = [PATTERNS] in place of this regular expression, and uncomment source",
		"exclude-datasets":           "write exclude = [PATTERNS] in place of this regular expression, and uncomment source",
		"exclude-snaps":              "write patterns of the other snapshots into snapshots.adopt: it cannot exclude snapshots",
		"force-delete":               "nothing: zxfer never destroys target data to make a stream fit; the run lists the remedies",
		"identifier":                 "nothing: the names of a job's snapshots contain the job's name",
		"include-snaps":              `write patterns for this regular expression into snapshots.adopt, which is ["*"]`,
		"insecure-direct-connection": "if data must use a certain address or port, write transfer.data_address and transfer.ports: zxfer always uses a separate, authenticated connection",
		"keep-sync-snap":             "nothing: a job keeps its snapshots until it has a [job.retention]",
		"no-clone-handling":          "nothing: zxfer sends a clone as a separate dataset",
		"no-clone-rollback":          "nothing: zxfer never rolls back a target",
		"no-command-checks":          "write transfer.skip_checks = [IDS] to skip checks that zxfer help checks lists",
		"no-privilege-elevation":     "to run the job as another user than root, write user = NAME; zxfer replicate check prints the zfs allow line",
		"no-resume":                  "nothing: zxfer always resumes interrupted transfers",
		"recvoptions":                "see [job.target.properties] and the target's name: zxfer has no such option",
		"sendoptions":                "see recursive and [job.target.properties] carry: zxfer has no such option",
	}
}

// recvOptions converts "o NAME=VALUE" and "x NAME" of --recvoptions. rest has the options that it
// does not convert.
func recvOptions(c *command, t *replicate.Target, value string) (rest string, err error) {
	words := strings.Fields(value)
	for i := 0; i < len(words); i++ {
		w := strings.TrimPrefix(words[i], "-")
		switch {
		case strings.Trim(w, "usv") == "": // zxfer always uses these
			continue
		case (w == "o" || w == "x") && i+1 < len(words):
			i++
		default:
			rest = strings.TrimSpace(rest + " " + words[i])
			continue
		}
		name, set, valued := strings.Cut(words[i], "=")
		if err := zfs.CheckProperty(name); err != nil || valued != (w == "o") {
			return "", fault.Usagef("write o NAME=VALUE or x NAME", "%s: --recvoptions: %q is neither", c.where, w+" "+words[i])
		}
		t.Properties.Exclude = slices.DeleteFunc(t.Properties.Exclude, func(n string) bool { return n == name })
		if w == "x" {
			t.Properties.Exclude = append(t.Properties.Exclude, name)
			delete(t.Properties.Set, name)
			continue
		}
		if t.Properties.Set == nil {
			t.Properties.Set = map[string]string{}
		}
		t.Properties.Set[name] = set
	}
	return rest, nil
}
