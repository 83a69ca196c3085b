package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/unit"
)

// unitDir is the directory of the administrator's units.
const unitDir = "/etc/systemd/system"

// installOptions holds the flags of install and uninstall.
type installOptions struct {
	replicateOptions
	root   string
	binary string
	cron   bool
	// withoutSystemd is the hint if systemctl fails.
	withoutSystemd string
}

func newReplicateInstall(a *app) *cobra.Command {
	o := &installOptions{withoutSystemd: "if the host has no systemd, use cron: zxfer replicate install --cron"}
	cmd := &cobra.Command{
		Use:   "install [FLAGS]",
		Short: "Install and start a systemd timer for each job",
		Long: `Write systemd units for the jobs of the job file, and start their timers.
install removes units of deleted jobs, and never changes units that it did not
write. Run it again after each change of the job file.`,
		Example: `  zxfer replicate install
      write units below /etc/systemd/system and start the timers
  zxfer replicate install --root /mnt/image
      write the units of an image
  zxfer replicate install --cron >/etc/cron.d/zxfer
      use cron on a host without systemd`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.cron {
				if err := refuseIneffective(cmd.Flags(), "with --cron, which writes no files", "root"); err != nil {
					return err
				}
			}
			return o.install(cmd.Context(), a)
		},
	}
	o.define(cmd, true, false)
	o.defineRoot(cmd)
	flagGroup(cmd, "Units", func(f *pflag.FlagSet) {
		f.StringVar(&o.binary, "binary", "", "start zxfer at `PATH` (default this binary)")
		f.BoolVar(&o.cron, "cron", false, "print lines for /etc/cron.d, and write nothing")
	})
	return cmd
}

func (o *installOptions) defineRoot(cmd *cobra.Command) {
	flagGroup(cmd, "Units", func(f *pflag.FlagSet) {
		f.StringVar(&o.root, "root", "", "use units below `DIRECTORY`, and do not call systemctl")
	})
}

func (o *installOptions) install(ctx context.Context, a *app) error {
	f, err := o.load()
	if err != nil {
		return err
	}
	paths, err := o.paths(f)
	if err != nil {
		return err
	}
	if o.cron {
		return printCron(a, f, paths)
	}
	if o.root == "" {
		if err := paths.Reachable(); err != nil {
			return fault.Usagef("move the program to /usr/local/bin, /etc or another directory that no user can write", "%w", err)
		}
	}
	files, err := unit.Files(f, paths)
	if err != nil {
		return fault.Usagef("", "%w", err)
	}
	dir := filepath.Join(o.root, unitDir)
	mine, foreign, err := installed(dir)
	if err != nil {
		return err
	}
	for name := range files {
		if slices.Contains(foreign, name) {
			return fault.Refusef("move the file, or rename the job", "%s exists, but zxfer did not write it", filepath.Join(dir, name))
		}
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Join(o.root, paths.StateDir), 0o755)); err != nil {
		return err
	}
	var gone []string
	for _, name := range mine {
		if files[name] == "" {
			gone = append(gone, name)
		}
	}
	if err := o.remove(ctx, a, dir, gone); err != nil {
		return err
	}
	var timers, others []string // units that systemd starts by itself
	same := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		switch {
		case unit.IsTimer(name):
			timers = append(timers, name)
		case unit.Enabled(name):
			others = append(others, name)
		}
		if was, err := os.ReadFile(path); err == nil && string(was) == files[name] {
			same++
			continue
		}
		if err := statedir.Replace(path, []byte(files[name]), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "wrote %s\n", path)
	}
	if same > 0 {
		fmt.Fprintf(a.stdout, "%s in %s %s unchanged\n", english.Plural(same, "unit", ""), dir, english.PluralWord(same, "is", "are"))
	}
	if err := o.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if len(timers) > 0 {
		if err := o.systemctl(ctx, append([]string{"enable", "--now"}, timers...)...); err != nil {
			return err
		}
	}
	if len(others) > 0 { // systemd starts them when their disk appears
		if err := o.systemctl(ctx, append([]string{"enable"}, others...)...); err != nil {
			return err
		}
	}
	if o.root != "" {
		return nil
	}
	return o.writeMetrics(ctx, a, f) // monitoring must know of jobs that never run
}

func (o *installOptions) paths(f *replicate.File) (p unit.Paths, err error) {
	p.Textfile = f.Metrics.Textfile
	if o.host != "" {
		p.Host = f.Host
	}
	if p.Binary = o.binary; p.Binary == "" {
		if p.Binary, err = os.Executable(); err != nil {
			return p, err
		}
	}
	if p.JobFile, err = filepath.Abs(o.file); err != nil {
		return p, err
	}
	p.StateDir, err = filepath.Abs(o.stateDir)
	return p, err
}

func printCron(a *app, f *replicate.File, paths unit.Paths) error {
	if err := paths.Check(); err != nil {
		return fault.Usagef("", "%w", err)
	}
	var errs []error
	for i := range f.Jobs {
		warnStateDir(a, &f.Jobs[i], paths.StateDir)
		if f.Jobs[i].DrillSchedule() != "" {
			errs = append(errs, cronLine(a, &f.Jobs[i], paths, unit.DrillCron))
		}
		if f.Jobs[i].Schedule == "" {
			continue
		}
		if f.Jobs[i].Jitter > 0 {
			fmt.Fprintf(a.stderr, "job %q: omitted jitter, because cron has no random delay\n", f.Jobs[i].Name)
		}
		errs = append(errs, cronLine(a, &f.Jobs[i], paths, unit.Cron))
	}
	return errors.Join(errs...)
}

// warnStateDir prints the command that creates the state directory of a job of another account, if the
// directory is missing and no unit creates it.
func warnStateDir(a *app, j *replicate.Job, stateDir string) {
	if _, err := os.Stat(filepath.Join(stateDir, j.Name)); j.User != "" && errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(a.stderr, "job %q: user %s cannot create its state directory; run once as root: %s\n", j.Name, j.User, statedir.CreateCommand(stateDir, j.Name, j.User))
	}
}

func cronLine(a *app, j *replicate.Job, paths unit.Paths, of func(*replicate.Job, unit.Paths) (string, error)) error {
	line, err := of(j, paths)
	if err != nil {
		return fmt.Errorf("job %q: %w", j.Name, err)
	}
	_, err = fmt.Fprintln(a.stdout, line)
	return err
}

// installed lists the units with zxfer's prefix: its own and foreign units.
func installed(dir string) (mine, foreign []string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, unit.Prefix+"*"))
	if err != nil {
		return nil, nil, err
	}
	for _, path := range found {
		if !unit.IsFile(filepath.Base(path)) {
			continue // drop-in directories
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		if strings.HasPrefix(string(text), unit.Marker) {
			mine = append(mine, filepath.Base(path))
		} else {
			foreign = append(foreign, filepath.Base(path))
		}
	}
	return mine, foreign, nil
}

// remove stops and removes units.
func (o *installOptions) remove(ctx context.Context, a *app, dir string, names []string) error {
	for _, name := range names {
		var err error
		switch {
		case unit.IsTimer(name):
			err = o.systemctl(ctx, "disable", "--now", name)
		case unit.Enabled(name):
			err = o.systemctl(ctx, "disable", name)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "removed %s\n", filepath.Join(dir, name))
	}
	return nil
}

// systemctl calls the running systemd. With --root it does nothing.
func (o *installOptions) systemctl(ctx context.Context, args ...string) error {
	if o.root != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fault.Failf(o.withoutSystemd, "systemctl %s: %w: %s",
			strings.Join(args, " "), err, strings.TrimSpace(string(out[max(0, len(out)-2048):])))
	}
	return nil
}

func newReplicateUninstall(a *app) *cobra.Command {
	o := &installOptions{withoutSystemd: "if systemd does not run, remove only the files: zxfer replicate uninstall --root /"}
	cmd := &cobra.Command{
		Use:   "uninstall [FLAGS]",
		Short: "Stop the timers and remove the units of install",
		Long: `Stop the timers and remove the units that install wrote. The job file, records,
snapshots and holds remain.`,
		Example: `  zxfer replicate uninstall
  zxfer replicate uninstall --root /mnt/image`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := filepath.Join(o.root, unitDir)
			mine, _, err := installed(dir)
			if err != nil {
				return err
			}
			if len(mine) == 0 {
				_, err := fmt.Fprintf(a.stdout, "%s: install wrote no units\n", dir)
				return err
			}
			if err := o.remove(cmd.Context(), a, dir, mine); err != nil {
				return err
			}
			return o.systemctl(cmd.Context(), "daemon-reload")
		},
	}
	o.defineRoot(cmd)
	return cmd
}
