package main

import (
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// wires are the words of --wire, the default first.
func wires() []string { return []string{"auto", "signed", "tls", "plain", "ssh"} }

// sendWires are those of send, which alone can do without zxfer elsewhere.
func sendWires() []string { return append(wires(), way.NC) }

// dials are the words of --dial, the default first.
func dials() []string { return []string{"auto", "source", "target"} }

// Bounds of the flags that count something.
const (
	maxStreams  = 64
	maxThreads  = 1024
	maxParallel = 64
	maxRetries  = 1000000
)

// request checks what single flags could not and returns the job's request.
func (o *sendOptions) request(flags *pflag.FlagSet, src, target string) (job.Send, error) {
	req := o.req
	req.Plan.Recursive = req.Plan.Recursive || o.recurse
	req.Window = min(req.Window, maxWindow)
	for _, step := range []func(*job.Send) error{
		func(r *job.Send) error { return setSource(r, src) },
		func(r *job.Send) error { return setTarget(r, target) },
		o.setProperties,
		o.checkSnapshots,
		func(r *job.Send) error { return checkSkipped(r.SkipChecks) },
		func(r *job.Send) error { return checkWay(&r.Way, r.Source, r.Target, flags) },
		func(r *job.Send) error { return checkNames(r, flags) },
	} {
		if err := step(&req); err != nil {
			return req, err
		}
	}
	if o.quiet && o.verbose {
		return req, fault.Usagef("", "--quiet and --verbose exclude each other")
	}
	return req, nil
}

// maxWindow is the largest value of SO_SNDBUF and SO_RCVBUF that the kernel
// can double without overflow.
const maxWindow = 1<<30 - 1

func setSource(req *job.Send, src string) error {
	e, err := endpoint.Parse(src)
	if err != nil {
		return err
	}
	req.Source, req.Plan.Source = e, e.Name
	if e.Path() {
		return nil // a mounted path is the survey's to resolve, a device the job's to refuse
	}
	dataset, snapshot, hasSnapshot := strings.Cut(e.Name, "@")
	switch {
	case strings.Contains(e.Name, "#"):
		return fault.Usagef("name a snapshot; a bookmark is used as the base by itself", "source %s is a bookmark, which holds no data to send", e)
	case hasSnapshot && snapshot == "":
		return fault.Usagef("leave the \"@\" out to send the newest snapshot", "source %s has no snapshot name after the \"@\"", e)
	case strings.Contains(snapshot, "@"), strings.Contains(snapshot, "/"):
		return fault.Usagef("write POOL/DATASET@SNAPSHOT", "source %s: %q is no snapshot name", e, snapshot)
	case dataset == "":
		return fault.Usagef("write POOL/DATASET@SNAPSHOT", "source %s has no dataset before the \"@\"", e)
	}
	req.Plan.Source, req.Plan.Snapshot = dataset, snapshot
	return nil
}

func setTarget(req *job.Send, target string) error {
	e, err := endpoint.Parse(target)
	if err != nil {
		return err
	}
	req.Target, req.Plan.Target = e, e.Name
	if !e.Path() && strings.ContainsAny(e.Name, "@#") {
		return fault.Usagef("name the target's dataset only: snapshots keep their names", "target %s names a snapshot or bookmark", e)
	}
	return nil
}

// setProperties takes -o apart.
func (o *sendOptions) setProperties(req *job.Send) error {
	if len(o.set) > 0 {
		req.Plan.Set = make(map[string]string, len(o.set))
	}
	for _, s := range o.set {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return fault.Usagef("", "-o %q: write NAME=VALUE", s)
		}
		if _, twice := req.Plan.Set[name]; twice {
			return fault.Usagef("", "-o sets the property %s twice", name)
		}
		req.Plan.Set[name] = value
	}
	for _, x := range req.Plan.Exclude {
		if x == "" || strings.Contains(x, "=") {
			return fault.Usagef("", "-x %q: write the name of a property", x)
		}
		if _, set := req.Plan.Set[x]; set {
			return fault.Usagef("", "-o sets the property %s and -x leaves it out", x)
		}
	}
	return nil
}

func (o *sendOptions) checkSnapshots(req *job.Send) error {
	if req.TakeSnapshot != "" {
		if req.Plan.Snapshot != "" {
			return fault.Usagef("leave out one of them", "--snapshot %s takes a new snapshot, but SRC names @%s", req.TakeSnapshot, req.Plan.Snapshot)
		}
		if strings.ContainsAny(req.TakeSnapshot, "@#/ ") {
			return fault.Usagef("give the name only, without dataset and \"@\"", "--snapshot %q is no snapshot name", req.TakeSnapshot)
		}
		if err := zfs.CheckComponent(req.TakeSnapshot); err != nil {
			return fmt.Errorf("--snapshot: %w", err)
		}
		req.Plan.Snapshot = req.TakeSnapshot
	}
	for flag, patterns := range map[string][]string{"--include-snaps": req.Plan.IncludeSnapshots, "--exclude-snaps": req.Plan.ExcludeSnapshots} {
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return fault.Usagef("a pattern may hold *, ? and [a-z]", "%s %q is not a pattern", flag, p)
			}
		}
	}
	return nil
}

// checkWay checks how bytes are to cross between two ends.
func checkWay(w *way.Way, source, target endpoint.Endpoint, flags *pflag.FlagSet) error {
	if w.Wire != way.NC {
		if err := checkOneHost(source, target, flags); err != nil {
			return err
		}
	}
	trusting := w.Wire == "plain" || w.Wire == way.NC
	switch {
	case trusting && !w.TrustedLink:
		return fault.Usagef("add --trusted-link if nobody can read or change data on the link, or leave --wire out",
			"--wire %s needs --trusted-link: bytes cross unencrypted and unauthenticated", w.Wire)
	case w.TrustedLink && !trusting:
		return fault.Usagef("add --wire plain, or leave --trusted-link out", "--trusted-link has no effect without --wire plain or nc")
	case w.Compress == "off" && flags.Changed("compress-threads"):
		return fault.Usagef("", "--compress-threads has no effect with --compress off")
	}
	if w.Wire == "ssh" {
		for _, f := range []string{"dial", "data-address", "port-range", "window"} {
			if flags.Changed(f) {
				return fault.Usagef("leave it out, or choose another --wire", "--%s has no effect with --wire ssh: data takes the way of the remote shell", f)
			}
		}
	}
	if w.Wire == way.NC {
		if err := checkNetcat(source, target, flags); err != nil {
			return err
		}
	}
	if w.DataAddress != "" {
		if _, err := netip.ParseAddr(w.DataAddress); err != nil {
			return fault.Usagef("give an IP address of the host that listens", "--data-address %q is not an IP address", w.DataAddress)
		}
	}
	if flags.Changed("rsh") && strings.TrimSpace(w.RSH) == "" {
		return fault.Usagef("", "--rsh is empty")
	}
	return nil
}

// checkNames checks what is named on both ends.
func checkNames(req *job.Send, flags *pflag.FlagSet) error {
	if flags.Changed("hold") {
		if err := zfs.CheckTag(req.Hold); err != nil {
			return fmt.Errorf("--hold: %w", err)
		}
	}
	if flags.Changed("snapshot") && req.TakeSnapshot == "" {
		return fault.Usagef("", "--snapshot needs a name")
	}
	return nil
}

// checkNetcat refuses what wire nc does not do.
func checkNetcat(source, target endpoint.Endpoint, flags *pflag.FlagSet) error {
	for _, f := range []string{"dial", "streams", "compress", "compress-threads", "verify", "measure", "no-bootstrap"} {
		if flags.Changed(f) {
			return fault.Usagef("leave it out, or choose another --wire", "--%s needs a zxfer on the other host, and --wire nc uses none", f)
		}
	}
	switch {
	case source.Local() == target.Local():
		return fault.Usagef("run zxfer on one of the two hosts, or leave --wire out", "--wire nc is between this host and another one")
	case isDevice(source), isDevice(target):
		return fault.Usagef("choose another --wire", "--wire nc moves datasets, not devices")
	}
	return nil
}
