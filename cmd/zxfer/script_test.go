package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes this test binary act as zxfer if it is started under that name. Scripts and
// remote hosts therefore run the code under test.
func TestMain(m *testing.M) {
	testscript.Main(suite{m}, map[string]func(){"zxfer": main, "zxfer-at": mainAt, "zxfer-month": mainMonth, "zxfer-forge": mainForge})
}

// suite removes shared resources of the tests before the process exits.
type suite struct{ *testing.M }

func (s suite) Run() int {
	defer labDown()
	return s.M.Run()
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error { // zxfer keeps its journals there if it does not run as root
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitcode},
		Condition: func(cond string) (bool, error) {
			file, ok := map[string]string{"zfs": "/dev/zfs", "bash-completion": "/usr/share/bash-completion/bash_completion"}[cond]
			if !ok {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			_, err := os.Stat(file)
			return err == nil, nil
		},
	})
}

// exitcode runs a command and expects an exit code:
//
//	exitcode 2 zxfer send
func exitcode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
