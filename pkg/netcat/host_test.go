package netcat

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
)

// plainHost returns a directory of programs that acts as a host: a zfs that runs a test's script,
// and an nc.
func plainHost(t *testing.T, nc, zfs string) (dir string, o sshexec.Options) {
	t.Helper()
	dir = t.TempDir()
	program := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	if nc != "" {
		program("nc", "exec "+nc+` "$@"`)
	}
	program("zfs", "cd "+shellquote.Join(dir)+"\n"+zfs)
	program("login", "command=$2; PATH="+shellquote.Join(dir)+":/usr/bin:/bin; export PATH\nexec sh -c \"$command\"")
	return dir, sshexec.Options{Host: "beta", Command: "/bin/sh " + shellquote.Join(filepath.Join(dir, "login"))}
}

func open(t *testing.T, nc, zfs string) (dir string, h *Host) {
	t.Helper()
	dir, o := plainHost(t, inPath(t, nc), zfs)
	h, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return dir, h
}

// inPath returns a command line with the absolute path of its program, because the PATH of a
// plain host lacks the programs of scripts/programs. It skips the test if there is none.
func inPath(t *testing.T, command string) string {
	t.Helper()
	program, args, _ := strings.Cut(command, " ")
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not in PATH", program)
	}
	return strings.TrimSpace(path + " " + args)
}

func TestHostsThatLackSomething(t *testing.T) {
	t.Parallel()
	dir, o := plainHost(t, "cat /dev/null;", storeScript)
	for _, other := range []string{"ncat", "netcat"} {
		require.NoError(t, os.Link(filepath.Join(dir, "nc"), filepath.Join(dir, other)))
	}
	_, err := Open(t.Context(), o)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "beta: its nc is of no dialect that zxfer knows")

	_, h := open(t, installedNC(t), storeScript)
	h.tools.nc = "false"
	_, err = h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.ErrorContains(t, err, "beta: false did not reach 127.0.0.1:")
	digests, devices := h.Run(t.Context(), &hosts.Request{Op: hosts.OpDigest}), h.Run(t.Context(), &hosts.Request{Op: hosts.OpInspectDevice})
	moves, tells := h.Run(t.Context(), &hosts.Request{Op: hosts.OpOffer}), h.Run(t.Context(), &hosts.Request{Op: hosts.OpCapture})
	for _, err := range []error{digests, devices, moves, tells} {
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.ErrorContains(t, err, "beta: without zxfer there it cannot ")
	}

	_, err = hosts.Call(t.Context(), h, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a b"}, Properties: []string{"guid"}})
	require.NoError(t, err, "a command without output")
	o.Command = "false"
	_, err = Open(t.Context(), o)
	require.ErrorContains(t, err, "beta: ")
}

// A host's replies may name only the requested objects.
func TestAnAnswerToSomethingElseIsNone(t *testing.T) {
	t.Parallel()
	_, h := open(t, installedNC(t), `case "$*" in
*" property -s "*) echo type;;
*" type pool/a") printf 'pool/b\ttype\tfilesystem\tlocal\n';;
*userrefs*) printf 'pool/b@x\tuserrefs\t1\t-\n';;
get*) printf 'pool/b\ttype\tfilesystem\t-\npool/b\tguid\t7\t-\npool/b\tcreatetxg\t7\t-\n';;
holds*) printf 'pool/b@x\tkeep\tMon Jan  1 00:00 2024\n';;
esac`)
	_, list := hosts.Call(t.Context(), h, hosts.OpList, hosts.ListQuery{Dataset: "pool/a", Recursive: true, Alone: true})
	_, properties := hosts.Call(t.Context(), h, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a"}, Properties: nil})
	_, holds := hosts.Call(t.Context(), h, hosts.OpHolds, []string{"pool/a@x"})
	for name, err := range map[string]error{"list": list, "properties": properties, "holds": holds} {
		require.ErrorContains(t, err, "pool/b", name)
		require.ErrorContains(t, err, "asked", name)
	}
}
