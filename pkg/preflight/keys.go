package preflight

import (
	"cmp"
	"fmt"
	"strings"

	"zxfer/pkg/finding"
)

// keys notes datasets that arrive encrypted with a key unknown to the target. Receiving needs
// no key, but reading does. A raw stream creates an encryption root, unless the dataset
// inherits its key at the end.
func keys(in *Input) []finding.Finding {
	var names, roots []string
	targets, seen := in.TargetListing.ByName(), map[string]bool{}
	for _, d := range in.Plan.Datasets {
		if !d.Encrypted || len(d.Steps) == 0 {
			continue
		}
		names = append(names, d.Target)
		root := d.Target
		if t := targets[d.Target]; t != nil && t.Get("encryptionroot") != "" {
			root = t.Get("encryptionroot")
		}
		root = cmp.Or(d.Joins, root)
		if !seen[root] {
			seen[root], roots = true, append(roots, root)
		}
	}
	if len(names) == 0 {
		return nil
	}
	var open []string
	if top := in.TargetListing.Root; len(roots) > maxKeys {
		open = []string{command("zfs", "load-key", "-r", top)}
	} else {
		for _, r := range roots {
			open = append(open, command("zfs", "load-key", r))
		}
	}
	return []finding.Finding{{
		Host: in.Target.Name, Severity: finding.Note,
		Summary:  "encrypted as on the source: " + finding.Some(names, 1) + "; receiving needs no key, reading needs the source's",
		Evidence: "raw streams (zfs send -w), each of which makes an encryption root of its own; one with the passphrase of what is above it joins that",
		Remedy:   "to read it, on " + in.Target.Name + ": " + strings.Join(open, "; "),
	}}
}

// maxKeys is the maximum number of load-key commands in a remedy.
const maxKeys = 16

// keyStatus notes encrypted source datasets whose key is not loaded. Only decrypted streams
// need the key.
func keyStatus(in *Input) []finding.Finding {
	decrypts := map[string]bool{}
	for d, st := range in.Plan.Streams() {
		decrypts[d.Source] = decrypts[d.Source] || !st.Send.Flags.Raw
	}
	var out []finding.Finding
	for _, d := range in.SourceListing.Datasets {
		if !d.Encrypted() || d.KeyLoaded() {
			continue
		}
		f := finding.Finding{Host: in.Source.Name, Severity: finding.Note, Summary: "the key of " + d.Name + " is not loaded: it is sent raw, which needs none",
			Evidence: fmt.Sprintf("zfs get keystatus %s: %s", d.Name, d.Get("keystatus")), Remedy: "to read it here: " + command("zfs", "load-key", d.Name)}
		if decrypts[d.Name] {
			f.Severity, f.Summary = finding.Fail, "the key of "+d.Name+" is not loaded, and a decrypted stream needs it"
		}
		out = append(out, f)
	}
	return out
}
