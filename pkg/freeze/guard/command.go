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

// environment is what a command finds beside what zxfer was started with.
type environment []string

// environmentOf is that of an application's:
//
//	ZXFER_HOOK      freeze or thaw
//	ZXFER_JOB       the job's name
//	ZXFER_FREEZE    the name in the job file, or the kind
//	ZXFER_SNAPSHOT  the name of the snapshots, behind "@"
//	LC_ALL          C
func environmentOf(q *freeze.Request, w *freeze.Wanted) environment {
	_, snapshot, _ := strings.Cut(q.Snapshots[0], "@")
	return environment{"ZXFER_JOB=" + q.Job, "ZXFER_FREEZE=" + w.Label(), "ZXFER_SNAPSHOT=" + snapshot}
}

// command is an application that two commands hold still and have go on.
type command struct {
	*freeze.Spec
	environment
}

func (c *command) freeze(ctx context.Context) (frozen, error) {
	_, err := run(ctx, c.Spec, c.Freeze, append(c.environment, "ZXFER_HOOK=freeze"))
	return frozen{}, err
}

// Whether it stood still thaw's exit code tells: it is not known before.
func (c *command) prove(context.Context) error { return nil }

func (c *command) thaw(ctx context.Context) error {
	env := append(slices.Clone(c.environment), "ZXFER_HOOK=thaw")
	_, err := run(ctx, c.Spec, c.Thaw, env)
	if err != nil {
		words := slices.Concat([]string{"env"}, env, c.Thaw)
		if c.RunAs != "" {
			words = append([]string{"runuser", "-u", c.RunAs, "--"}, words...)
		}
		err = fault.Failf("look whether it goes on; else: "+shellquote.Join(words...), "thaw: %w", err)
	}
	return err
}

// windDown is how long a command that was told to end may take.
const windDown = 2 * time.Second

// start starts a program for an application, as the account that it says.
func start(ctx context.Context, s *freeze.Spec, argv, env []string, stdin io.Reader, stdout, stderr io.Writer) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = stdin, stdout, stderr, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = windDown
	if err := become(cmd, s.RunAs); err != nil {
		return nil, fmt.Errorf("run_as = %q: %w", s.RunAs, err)
	}
	if err := cmd.Start(); err != nil {
		hint := ""
		if s.RunAs != "" && errors.Is(err, syscall.EPERM) {
			hint = "only root can run a program as another account: leave run_as out, or have the job run as root"
		}
		return nil, fault.Failf(hint, "%s: %w", argv[0], err)
	}
	return cmd, nil
}

// become has a command run as an account.
func become(cmd *exec.Cmd, account string) error {
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
	groups, _ := u.GroupIds() // those that cannot be told it goes without
	for _, g := range groups {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(n))
		}
	}
	cmd.SysProcAttr.Credential = c
	return nil
}

// run runs a program to its end, and returns what it printed.
func run(ctx context.Context, s *freeze.Spec, argv, env []string) (string, error) {
	out, said := &cli.Tail{}, &cli.Tail{}
	cmd, err := start(ctx, s, argv, env, nil, out, said)
	if err != nil {
		return "", err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what ignored the first signal; it may be gone
		err = context.Cause(ctx)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), nil
	}
	text := said.String()
	if strings.TrimSpace(text) == "" {
		text = out.String()
	}
	return "", failure(argv[0], err, text)
}

// failure is that of a program, with the end of what it said.
func failure(program string, err error, said string) error {
	if said = freeze.Clean(said); said != "" {
		return fmt.Errorf("%s: %w: %s", program, err, said)
	}
	return fmt.Errorf("%s: %w", program, err)
}
