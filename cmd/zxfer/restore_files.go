package main

import (
	"context"
	"path"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/job/restore"
	"zxfer/pkg/report"
	"zxfer/pkg/transport"
)

// filesOptions holds the flags of restore --files.
type filesOptions struct {
	paths     []string
	keyFile   string
	overwrite bool
}

func (o *filesOptions) define(f *pflag.FlagSet) {
	f.StringArrayVar(&o.paths, "files", nil, "restore only file or directory `PATH`; / is all; repeatable")
	f.StringVar(&o.keyFile, "key-file", "", "load keys from `FILE` on COPY's host (for --files)")
	f.BoolVar(&o.overwrite, "overwrite", false, overwriteHelp+" that differ (with --files)")
}

// filesRequest returns the request for --files.
func (o *restoreOptions) filesRequest(cmd *cobra.Command, from, target string) (restore.Files, error) {
	send := o.req
	req := restore.Files{Paths: o.files.paths, KeyFile: o.files.keyFile, Overwrite: o.files.overwrite, DryRun: send.DryRun, Retries: send.Retries}
	if err := refuseIneffective(cmd.Flags(), "with --files", datasetFlags()...); err != nil {
		return req, err
	}
	if err := setSource(&send, from); err != nil {
		return req, err
	}
	var err error
	if req.Target, err = parseEndpoint(target); err != nil {
		return req, err
	}
	req.Source = send.Source
	switch {
	case req.Source.Path():
		return req, fault.Usagef("write COPY as [HOST:]DATASET[@SNAPSHOT]", "--files requires a dataset, but COPY is the path %s", req.Source)
	case !req.Target.Path():
		return req, fault.Usagef("write a path: ./"+path.Base(req.Target.Name)+" or HOST:/PATH", "--files requires a directory as TARGET, but %s is not a path", req.Target)
	case o.at != "" && send.Plan.Snapshot != "":
		return req, fault.Usagef("omit one of them", "--at selects the snapshot, but COPY names @%s", send.Plan.Snapshot)
	case req.KeyFile != "" && !path.IsAbs(req.KeyFile):
		return req, fault.Usagef("write the absolute path on COPY's host", "--key-file %q is not an absolute path", req.KeyFile)
	case send.Wire == transport.NC:
		return req, fault.Usagef("choose another --wire", "--wire nc cannot restore files: they need zxfer on both hosts")
	}
	if err := (files.Archive{Paths: req.Paths}).Check(); err != nil {
		return req, fault.Usagef("write paths relative to the root of the dataset", "--files: %w", err)
	}
	if cmd.Flags().Changed("at") {
		if req.At, err = timeOf(cmd.Context(), o.at); err != nil {
			return req, err
		}
	}
	req.Settings = send.Settings
	return req, checkTransport(&req.Settings, transport.Send, req.Source, req.Target)
}

// datasetFlags returns the flags that have no effect with --files.
func datasetFlags() []string {
	return []string{"recursive", "recurse", "include-snaps", "exclude-snaps", "newest", "since", "latest-only", "decrypt", "mount", "set", "exclude", "verify", "rollback",
		"no-resume", "measure", "parallel", "skip-check", "report"}
}

// runFiles runs the job and reports it.
func (o *restoreOptions) runFiles(ctx context.Context, a *app, req restore.Files) error {
	j, err := o.start(a, a.stdout, device.Streams{})
	if err != nil {
		return err
	}
	r, err := restore.RunFiles(ctx, req, j.at, j.rep)
	return j.finish(ctx, r, err, jobEnd{text: report.FilesResult(r), done: "the files were restored, but their report could not be written: "})
}
