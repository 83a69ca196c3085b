package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// CreateDrillClone creates a clone of a snapshot that nothing mounts, shares or snapshots
// automatically, and returns its name.
func (c *CLI) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	of, _, err := zfs.ParseSnapshot(a.Snapshot)
	if err != nil {
		return "", err
	}
	if err := zfs.CheckValue(zfs.DrillCloneProperty, a.Job); err != nil {
		return "", err
	}
	found, err := c.Properties(ctx, []string{of}, []string{"type", "keystatus", "encryptionroot"})
	if err != nil {
		return "", err
	}
	if a.KeyFile != "" && found[of]["keystatus"].Value == "unavailable" {
		root := found[of]["encryptionroot"].Value
		if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpLoadKey, Subject: root}, []string{"load-key", "-n", "-L", "file://" + a.KeyFile, root}); err != nil {
			return "", err
		}
	}
	name := zfs.DrillCloneName(zfs.PoolOf(of), strings.ToLower(rand.Text()[:10]))
	args := []string{"clone", "-o", zfs.DrillCloneProperty + "=" + a.Job}
	if found[of]["type"].Value == string(zfs.Volume) {
		args = append(args, "-o", "com.sun:auto-snapshot=false", "-o", "volmode=none")
	} else {
		args = append(args, filesystemCloneOptions...)
	}
	readonly := "on"
	if a.Writable { // even if the pool's root dataset is read-only
		readonly = "off"
	}
	args = append(args, "-o", "readonly="+readonly)
	if _, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpClone, Subject: a.Snapshot}, append(args, a.Snapshot, name)); err != nil || len(a.Among) == 0 {
		return name, err
	}
	if err = c.checkCloneLimit(ctx, name, a.Among); err != nil {
		err = errors.Join(err, c.destroyDrillClone(context.WithoutCancel(ctx), name))
	}
	return name, err
}

// checkCloneLimit refuses a clone beyond the limit. It runs after the clone exists, so that of two
// concurrent calls each counts both clones.
func (c *CLI) checkCloneLimit(ctx context.Context, name string, among []string) error {
	all, err := c.drillClones(ctx, zfs.PoolOf(name))
	n := 0
	for _, one := range all {
		if slices.ContainsFunc(among, func(root string) bool { return strings.HasPrefix(one.of+"/", root+"/") }) {
			n++
		}
	}
	if err == nil && n > zfs.MaxDrillClones {
		err = fault.Refusef("the next drill of the job destroys leftover clones", "this key already has %d drill clones", n-1)
	}
	return err
}

// drillClone is a clone that CreateDrillClone created.
type drillClone struct {
	name, of, job string // of: the dataset of its origin
	created       time.Time
}

// drillClones returns the drill clones of a pool. A drill clone has both the name and the property.
func (c *CLI) drillClones(ctx context.Context, pool string) (all []drillClone, err error) {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return nil, err
	}
	out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpList, Subject: pool}, []string{"list", "-H", "-o", "name", "-d", "1", "-t", "filesystem,volume", pool})
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(strings.Split(strings.TrimSuffix(out, "\n"), "\n"), func(n string) bool { return !zfs.IsDrillClone(n) })
	found, err := c.Properties(ctx, names, []string{"origin", zfs.DrillCloneProperty, "creation"})
	for _, name := range names {
		of, _, isClone := strings.Cut(found[name]["origin"].Value, "@")
		if mark := found[name][zfs.DrillCloneProperty]; isClone && mark.Local() {
			all = append(all, drillClone{name, of, mark.Value, createdAt(found[name]["creation"].Value)})
		}
	}
	return all, err
}

func (c *CLI) destroyDrillClone(ctx context.Context, name string) error {
	return ignore(c.change(ctx, zfs.OpDestroy, name, "destroy", "-r"), zfs.NotFound)
}

// DestroyDrillClones destroys only clones that have a drill clone's name, the job's property, and a
// snapshot of one of the datasets as origin.
func (c *CLI) DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error {
	var errs []error
	for _, pool := range poolsOf(a.Datasets) {
		all, err := c.drillClones(ctx, pool)
		if err != nil {
			return err
		}
		for _, one := range all {
			if one.job == a.Job && slices.Contains(a.Datasets, one.of) {
				errs = append(errs, c.destroyDrillClone(ctx, one.name))
			}
		}
	}
	return errors.Join(errs...)
}

func poolsOf(datasets []string) (pools []string) {
	for _, d := range datasets {
		if p := zfs.PoolOf(d); !slices.Contains(pools, p) {
			pools = append(pools, p)
		}
	}
	return pools
}

// checkDrillClone returns an error if CreateDrillClone did not create the dataset.
func (c *CLI) checkDrillClone(ctx context.Context, clone string) error {
	found, err := c.Properties(ctx, []string{clone}, []string{"origin", zfs.DrillCloneProperty})
	if err == nil && (!zfs.IsDrillClone(clone) || !found[clone][zfs.DrillCloneProperty].Local() || !strings.Contains(found[clone]["origin"].Value, "@")) {
		err = fault.Refusef("", "%s is not a drill clone", clone)
	}
	return err
}

// drillScript mounts a clone in a private mount namespace and runs a command, given as the last
// words. As in env(1), exit status 125 means that the setup failed; 126 and 127 are the shell's.
const drillScript = `{ mount --make-rprivate / && mount -t proc proc /proc && mount -i -t zfs -o "$1" "$2" "$3" && cd "$3"; } || exit 125; shift 3; exec "$@"`

// commandGrace limits how long a command may run after SIGTERM.
const commandGrace = 5 * time.Second

// RunInDrillClone runs a command in a drill clone. It has its own mount and process namespaces, so
// that its child processes and the mount end with it.
func (c *CLI) RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (out zfs.DrillResult, err error) {
	if err := errors.Join(a.Check(), c.checkDrillClone(ctx, a.Clone)); err != nil {
		return out, err
	}
	dir, err := os.MkdirTemp("", zfs.DrillClonePrefix)
	if err != nil {
		return out, err
	}
	defer os.Remove(dir) // never a mountpoint in this process's namespace
	bounded, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	options, output := "ro,nosuid,nodev", &Tail{}
	if a.Writable {
		options = "rw,nosuid,nodev"
	}
	cmd := exec.CommandContext(bounded, "/bin/sh", append([]string{"-c", drillScript, "sh", options, a.Clone, dir}, a.Argv...)...)
	cmd.Env = append(append(os.Environ(), a.Environment...), "ZXFER_DRILL_DIR="+dir, "LC_ALL=C")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = output, output, commandGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := c.StartChild(cmd); err != nil {
		if errors.Is(err, syscall.EPERM) {
			err = fault.Failf("run drills with a command as root there", "namespaces for the command: %w", err)
		}
		return out, err
	}
	err = cmd.Wait()
	text := strings.ToValidUTF8(strings.TrimSpace(output.String()), "\uFFFD")
	out = zfs.DrillResult{Output: strings.ToValidUTF8(text[max(0, len(text)-zfs.MaxDrillOutput):], "")}
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case bounded.Err() != nil:
		out.Failure = fmt.Sprintf("it did not end within %s", a.Timeout)
	case hasNoResult(cmd):
		return out, fmt.Errorf("%s: it could not run, or not report its result: %w: %s", a.Argv[0], err, text[strings.LastIndexByte(text, '\n')+1:])
	case err != nil:
		out.Failure = err.Error()
	}
	return out, nil
}

// hasNoResult reports whether a command did not start, or was killed, such as when memory ran out.
func hasNoResult(cmd *exec.Cmd) bool {
	code := cmd.ProcessState.ExitCode()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return code >= 125 && code <= 127 || status.Signaled() && status.Signal() == syscall.SIGKILL
}
