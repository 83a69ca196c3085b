package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/transport"
)

// isDevice tells a device that was given where a dataset may be.
func isDevice(e endpoint.Endpoint) bool { return strings.HasPrefix(e.Name, "/dev/") }

// sendDevice is zxfer send with a device: it does what zxfer dev does, and says
// so. Flags that only datasets have are refused.
func sendDevice(ctx context.Context, a *app, o *sendOptions, req job.Send, flags *pflag.FlagSet) error {
	device := req.Source
	if !isDevice(device) {
		device = req.Target
	}
	if !req.Source.Path() || !req.Target.Path() {
		return fault.Usagef("zxfer dev copies a device to a device or image file; zxfer send a dataset to a dataset",
			"%s is a device, and the other end is not", device)
	}
	ours := newSet()
	wayFlags(ours, &transport.Settings{}, transport.Dev)
	(&devOptions{}).defineRun(ours)
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && ours.Lookup(f.Name) == nil {
			err = fault.Usagef("zxfer help dev lists the flags for devices", "--%s is for datasets, %s is a device", f.Name, device)
		}
	})
	if err != nil {
		return err
	}
	d := &devOptions{output: o.output,
		note: fmt.Sprintf("%s is a device: it is copied as zxfer dev does", device)}
	return runDev(ctx, a, d, job.Dev{
		Source: req.Source, Target: req.Target, DryRun: req.DryRun, Measure: req.Measure, SkipChecks: req.SkipChecks,
		Settings: req.Settings,
		Retries:  req.Retries,
	})
}
