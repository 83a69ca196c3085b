package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
)

// fakeSSH returns the address of a host that zxfer reaches with a program that it takes for ssh. script runs
// with the host's command in the variable command, and with a fake zfs and no zxfer in its PATH. Its function
// wait_as_master stands for a shared connection.
func fakeSSH(t *testing.T, script string) (dir string, l hosts.Address) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	zfs := "#!/bin/sh\n[ \"$1\" != version ] || printf 'zfs-2.2.4-1\\nzfs-kmod-2.2.4-1\\n'\necho \"$@\" >>" + shellquote.Join(filepath.Join(dir, "calls")) + "\n"
	testenv.WriteProgram(t, filepath.Join(dir, "bin", "zfs"), zfs)
	program := filepath.Join(dir, "ssh")
	text := "#!/bin/sh\ncd " + shellquote.Join(dir) + "\nHOME=$PWD PATH=$PWD/bin:/usr/bin:/bin; export HOME PATH\n" + `socket= bare=
for command; do
	case $command in ControlPath=*) socket=${command#*=};; -N) bare=1;; esac
done
wait_as_master() { [ -z "$bare" ] || { : >"$socket"; exec sleep 100000; }; }
` + script + "\n"
	testenv.WriteProgram(t, program, text)
	return dir, hosts.Address{Host: "beta", RSH: shellquote.Join(program), NoBootstrap: true}
}

// TestHostWithoutAgent expects one message about a host without an agent, no change of that host,
// and after its loss an error that a retry may cure.
func TestHostWithoutAgent(t *testing.T) {
	t.Parallel()
	dir, l := fakeSSH(t, `[ ! -e down ] || { echo "Connection refused" >&2; exit 255; }
wait_as_master
exec sh -c "$command"`)
	var logged []string
	o := &opener{log: func(s string) { logged = append(logged, s) }}
	for range 2 {
		h, err := o.Open(t.Context(), l)
		require.NoError(t, err)
		require.False(t, h.Supports(hosts.OpTransfer))
		require.NoError(t, h.Close())
	}
	require.Equal(t, 1, strings.Count(strings.Join(logged, "\n"), "using its zfs through ssh"), "%q", logged)
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err == nil {
		require.NotContains(t, strings.ReplaceAll(string(calls), "version\n", ""), "\n", "it changed the host")
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, "down"), nil, 0o600))
	_, err = o.Open(t.Context(), l)
	require.ErrorContains(t, err, "Connection refused")
	require.Equal(t, fault.Failed, fault.ClassOf(err), err)
}

// TestSharedConnectionEnds expects that the end of an idle agent's connection also ends the shared one: a run
// that connects again would otherwise keep a process for each connection.
func TestSharedConnectionEnds(t *testing.T) {
	t.Parallel()
	dir, l := fakeSSH(t, `[ -z "$bare" ] || echo "$socket" >socket
wait_as_master
printf '\nzxfer-agent `+strconv.Itoa(agent.Protocol)+` devel\n'
exec cat >/dev/null`)
	h, err := (&opener{log: func(string) {}}).Open(t.Context(), l)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "socket"))
	require.NoError(t, err)
	socket := strings.TrimSpace(string(text))
	require.FileExists(t, socket)
	require.NoError(t, h.Close())
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Dir(socket))
		return os.IsNotExist(err)
	}, testenv.Timeout(), time.Millisecond)
}

// TestUnreachableHostHasAnAgent expects that a failed login is never taken for a host without an agent.
func TestUnreachableHostHasAnAgent(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"refused":  `echo "Permission denied (publickey)." >&2; exit 255`,
		"host key": `echo "Host key verification failed." >&2; exit 255`,
		"killed":   `kill -9 $$`,
		"cut late": `printf '\nzxfer-need Linux x86_64 gzip 1\n'; exit 255`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, l := fakeSSH(t, script)
			l.NoBootstrap = false
			o := &opener{log: func(s string) { require.NotContains(t, s, "using its zfs") }}
			_, err := o.Open(t.Context(), l)
			require.Error(t, err)
			require.Empty(t, o.noAgent)
		})
	}
}
