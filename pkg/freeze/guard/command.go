package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/zfs/cli"
)

// environment holds variables for a command, in addition to zxfer's environment.
type environment []string

// environmentFor returns the variables for an application's commands:
//
//	ZXFER_HOOK      freeze or thaw, added later
//	ZXFER_JOB       the job's name
//	ZXFER_FREEZE    the name in the job file, or the kind
//	ZXFER_SNAPSHOT  the name of the snapshots, after "@"
//	LC_ALL          C, added later
func environmentFor(q *freeze.Request, w *freeze.Application) environment {
	_, snapshot, _ := strings.Cut(q.Snapshots[0], "@")
	return environment{"ZXFER_JOB=" + q.Job, "ZXFER_FREEZE=" + w.Label(), "ZXFER_SNAPSHOT=" + snapshot}
}

// command is an application that two commands freeze and thaw.
type command struct {
	*freeze.Spec
	environment
}

func (c *command) freeze(ctx context.Context) (frozen, error) {
	_, err := run(ctx, c.Spec, c.Freeze, append(c.environment, "ZXFER_HOOK=freeze"))
	return frozen{}, err
}

// prove succeeds: only the exit code of the thaw command shows whether the freeze held.
func (c *command) prove(context.Context) error { return nil }

func (c *command) thaw(ctx context.Context) error {
	env := append(slices.Clone(c.environment), "ZXFER_HOOK=thaw")
	_, err := run(ctx, c.Spec, c.Thaw, env)
	if err != nil {
		words := slices.Concat([]string{"env"}, env, c.Thaw)
		if c.RunAs != "" {
			words = append([]string{"runuser", "-u", c.RunAs, "--"}, words...)
		}
		err = fault.Failf("check that the application runs; otherwise run: "+shellquote.Join(words...), "thaw: %w", err)
	}
	return err
}

// waitDelay is how long a command may take to end after SIGTERM.
const waitDelay = 2 * time.Second

// start starts a program for an application, as the account RunAs.
func start(ctx context.Context, s *freeze.Spec, argv, env []string, stdin io.Reader, stdout, stderr io.Writer) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = stdin, stdout, stderr, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = waitDelay
	if err := setAccount(cmd, s.RunAs); err != nil {
		return nil, fmt.Errorf("run_as = %q: %w", s.RunAs, err)
	}
	if err := cmd.Start(); err != nil {
		hint := ""
		if s.RunAs != "" && errors.Is(err, syscall.EPERM) {
			hint = "run the job as root, or omit run_as"
		}
		return nil, fault.Failf(hint, "%s: %w", argv[0], err)
	}
	return cmd, nil
}

// setAccount makes cmd run as account.
func setAccount(cmd *exec.Cmd, account string) error {
	if account == "" {
		return nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return err
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
	if int(uid) == os.Geteuid() {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	groups, _ := u.GroupIds() // on error the program runs without them
	for _, g := range groups {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(n))
		}
	}
	cmd.SysProcAttr.Credential = c
	return nil
}

// run runs a program until it exits and returns its output.
func run(ctx context.Context, s *freeze.Spec, argv, env []string) (string, error) {
	out, output := &cli.Tail{}, &cli.Tail{}
	cmd, err := start(ctx, s, argv, env, nil, out, output)
	if err != nil {
		return "", err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // descendants may ignore SIGTERM; the group may be gone
		err = context.Cause(ctx)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), nil
	}
	text := output.String()
	if strings.TrimSpace(text) == "" {
		text = out.String()
	}
	return "", withOutput(argv[0], err, text)
}

// withOutput returns the error of a program with the end of its output.
func withOutput(program string, err error, output string) error {
	if output = freeze.Clean(output); output != "" {
		return fmt.Errorf("%s: %w: %s", program, err, output)
	}
	return fmt.Errorf("%s: %w", program, err)
}
