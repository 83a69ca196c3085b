package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// request checks flags that depend on each other and returns the job's request.
func (o *sendOptions) request(flags *pflag.FlagSet, src, target string) (send.Request, error) {
	req := o.req
	req.Plan.Recursive = req.Plan.Recursive || o.recurse
	if o.rotate {
		if req.Plan.Rollback {
			return req, fault.Usagef("omit one of them", "--rollback and --rotate cannot be combined")
		}
		req.Plan.Rotate = zfs.DivergedSuffix(o.now())
	}
	for _, step := range []func(*send.Request) error{
		func(r *send.Request) error { return setSource(r, src) },
		func(r *send.Request) error { return setTarget(r, target) },
		o.setProperties,
		func(r *send.Request) error { return o.nameSnapshot(r, flags) },
		o.checkSnapshots,
		func(r *send.Request) error { return checkSkipped(r.SkipChecks) },
		func(r *send.Request) error { return checkTransport(&r.Settings, transport.Send, r.Source, r.Target) },
		func(r *send.Request) error { return checkNames(r, flags) },
	} {
		if err := step(&req); err != nil {
			return req, err
		}
	}
	return req, nil
}

func setSource(req *send.Request, src string) error {
	e, err := parseEndpoint(src)
	if err != nil {
		return err
	}
	req.Source, req.Plan.Source = e, e.Name
	if e.Path() {
		return nil // the survey resolves a mounted path, the job refuses a device
	}
	dataset, snapshot, hasSnapshot := strings.Cut(e.Name, "@")
	switch {
	case strings.Contains(e.Name, "#"):
		return fault.Usagef("name a snapshot; zxfer uses bookmarks as incremental sources automatically", "source %q is a bookmark, which holds no data", e)
	case hasSnapshot && snapshot == "":
		return fault.Usagef("to send the most recent snapshot, omit the \"@\"", "source %q has no snapshot name after the \"@\"", e)
	case strings.Contains(snapshot, "@"), strings.Contains(snapshot, "/"):
		return fault.Usagef("write POOL/DATASET@SNAPSHOT", "source %s: %q is not a snapshot name", e, snapshot)
	case dataset == "":
		return fault.Usagef("write POOL/DATASET@SNAPSHOT", "source %q has no dataset before the \"@\"", e)
	}
	req.Plan.Source, req.Plan.Snapshot = dataset, snapshot
	return nil
}

// parseEndpoint parses an endpoint. It makes a relative path absolute.
func parseEndpoint(s string) (endpoint.Endpoint, error) {
	e, err := endpoint.Parse(s)
	if err == nil && e.Relative() {
		e.Name, err = filepath.Abs(e.Name)
	}
	return e, err
}

func setTarget(req *send.Request, target string) error {
	e, err := parseEndpoint(target)
	if err != nil {
		return err
	}
	req.Target, req.Plan.Target = e, e.Name
	if !e.Path() && strings.ContainsAny(e.Name, "@#") {
		if suggestion := e.WithoutPool(); suggestion != "" {
			return fault.Usagef("for a host, write "+suggestion+"\nfor a pool, omit the part after it", "target %q has no pool", e)
		}
		return fault.Usagef("omit the part after the dataset; snapshots keep their names", "target %q is a snapshot or bookmark", e)
	}
	return nil
}

// setProperties parses -o and checks -x.
func (o *sendOptions) setProperties(req *send.Request) error {
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
			return fault.Usagef("", "-x %q is not the name of a property", x)
		}
		if _, set := req.Plan.Set[x]; set {
			return fault.Usagef("", "-o sets the property %s, but -x excludes it", x)
		}
	}
	return nil
}

// nameSnapshot sets a snapshot name with the time for --snapshot= without a name.
func (o *sendOptions) nameSnapshot(req *send.Request, flags *pflag.FlagSet) error {
	if !flags.Changed("snapshot") || req.TakeSnapshot != "" {
		return nil
	}
	naming, err := replicate.NewNaming(replicate.OnceTemplate, "")
	if err == nil {
		req.TakeSnapshot = naming.At(o.now())
	}
	return err
}

func (o *sendOptions) checkSnapshots(req *send.Request) error {
	if req.TakeSnapshot != "" {
		if req.Plan.Snapshot != "" {
			return fault.Usagef("omit one of them", "--snapshot %s takes a new snapshot, but SRC names @%s", req.TakeSnapshot, req.Plan.Snapshot)
		}
		if strings.ContainsAny(req.TakeSnapshot, "@#/ ") {
			return fault.Usagef("write only the name, without dataset and \"@\"", "--snapshot %q is not a snapshot name", req.TakeSnapshot)
		}
		if err := zfs.CheckComponent(req.TakeSnapshot); err != nil {
			return fmt.Errorf("--snapshot: %w", err)
		}
		req.Plan.Snapshot = req.TakeSnapshot
	}
	if req.Plan.LatestOnly && (req.Plan.Newest > 0 || o.since.Duration > 0) {
		return fault.Usagef("omit one of them", "--latest-only cannot be combined with --newest or --since")
	}
	if o.since.Duration > 0 {
		req.Plan.Since = o.now().Add(-time.Duration(o.since.Duration))
	}
	for flag, patterns := range map[string][]string{"--include-snaps": req.Plan.IncludeSnapshots, "--exclude-snaps": req.Plan.ExcludeSnapshots} {
		for _, p := range patterns {
			if _, err := plan.ParsePattern(p); err != nil {
				return fault.Usagef("", "%s: %w", flag, err)
			}
		}
	}
	return nil
}

// checkNames checks flags that affect both ends.
func checkNames(req *send.Request, flags *pflag.FlagSet) error {
	if req.Wire == transport.NC {
		if err := refuseIneffective(flags, "with --wire nc, which uses no zxfer on the remote host", "verify", "measure"); err != nil {
			return err
		}
	}
	if flags.Changed("hold") {
		if err := zfs.CheckTag(req.Hold); err != nil {
			return fmt.Errorf("--hold: %w", err)
		}
	}
	return nil
}
