package agentless

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/testenv"
)

// plainHost returns a directory of programs that acts as a host: a zfs that runs a test's script,
// and an nc.
func plainHost(t *testing.T, nc, zfs string) (dir string, o sshexec.Options) {
	t.Helper()
	dir = t.TempDir()
	program := func(name, text string) {
		testenv.WriteProgram(t, filepath.Join(dir, name), "#!/bin/sh\n"+text+"\n")
	}
	if nc != "" {
		program("nc", "exec "+nc+` "$@"`)
	}
	program("zfs", "cd "+shellquote.Join(dir)+"\n"+zfs)
	program("login", "command=$2; PATH="+shellquote.Join(dir)+":/usr/bin:/bin; export PATH\nexec sh -c \"$command\"")
	return dir, sshexec.Options{Host: "beta", Command: "/bin/sh " + shellquote.Join(filepath.Join(dir, "login"))}
}

func openNCHost(t *testing.T, nc, zfs string) (dir string, h *Host) {
	t.Helper()
	dir, o := plainHost(t, inPath(t, nc), zfs)
	h, err := openHost(t.Context(), o, true)
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

func TestHostLacksTool(t *testing.T) {
	t.Parallel()
	dir, o := plainHost(t, "cat /dev/null;", storeScript)
	for _, other := range []string{"ncat", "netcat"} {
		require.NoError(t, os.Link(filepath.Join(dir, "nc"), filepath.Join(dir, other)))
	}
	_, err := openHost(t.Context(), o, true)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "beta: unknown variant of nc")

	_, h := openNCHost(t, installedNC(t), storeScript)
	h.tools.nc = "false"
	_, err = openSink(t.Context(), h, ncPath(offer(), 0))
	require.ErrorContains(t, err, "beta: false could not connect to")
	inUse, devices := h.Run(t.Context(), &hosts.Request{Op: hosts.OpInUse}), h.Run(t.Context(), &hosts.Request{Op: hosts.OpInspectDevice})
	moves, tells := h.Run(t.Context(), &hosts.Request{Op: hosts.OpOffer}), h.Run(t.Context(), &hosts.Request{Op: hosts.OpCapture})
	for _, err := range []error{inUse, devices, moves, tells} {
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.ErrorContains(t, err, "beta: without zxfer there, zxfer cannot ")
	}

	_, err = hosts.Call(t.Context(), h, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a b"}, Properties: []string{"guid"}})
	require.NoError(t, err, "a command without output")
	o.Command = "false"
	_, err = openHost(t.Context(), o, true)
	require.ErrorContains(t, err, "beta: ")
}

// TestRunRefusesUnrelatedAnswer expects that a host's replies may name only the requested
// objects.
func TestRunRefusesUnrelatedAnswer(t *testing.T) {
	t.Parallel()
	_, h := openNCHost(t, installedNC(t), `case "$*" in
*" property -s "*) echo type;;
*" type pool/a") printf 'pool/b\ttype\tfilesystem\tlocal\n';;
*userrefs*) printf 'pool/b@x\tuserrefs\t1\t-\n';;
get*) printf 'pool/b\ttype\tfilesystem\t-\npool/b\tguid\t7\t-\npool/b\tcreatetxg\t7\t-\n';;
holds*) printf 'pool/b@x\tkeep\tMon Jan  1 00:00 2024\n';;
esac`)
	_, list := hosts.Call(t.Context(), h, hosts.OpList, hosts.ListQuery{Dataset: "pool/a", Recursive: true, NoAncestors: true})
	_, properties := hosts.Call(t.Context(), h, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a"}, Properties: nil})
	_, holds := hosts.Call(t.Context(), h, hosts.OpHolds, []string{"pool/a@x"})
	for name, err := range map[string]error{"list": list, "properties": properties, "holds": holds} {
		require.ErrorContains(t, err, "pool/b", name)
		require.ErrorContains(t, err, "got ", name)
	}
}

func TestParseSurvey(t *testing.T) {
	t.Parallel()
	// Debian 13, over ssh.
	f, tools := parseSurvey("hostname beta\nkernel 6.12.90\nuser root\nuid 0\nboot 5c0b9b66\nconnection 10.77.0.1 54968 10.77.0.2 22\n" +
		"cpus 4\nzfs 2.3.9-0+deb13u1\ntool /usr/sbin/zfs\nmbuffer /usr/bin/mbuffer\nhelp nc\nOpenBSD netcat (Debian patchlevel 1.229-1)\n")
	require.Equal(t, hosts.Facts{Hostname: "beta", Kernel: "6.12.90", User: "root", Root: true, Boot: "5c0b9b66", SSHPeer: "10.77.0.1",
		SSHLocal: "10.77.0.2", CPUs: 4, ZFS: "2.3.9-0+deb13u1", Backend: "zfs command line through the remote shell"}, f)
	require.Equal(t, toolsOf("nc", sysinfo.OpenBSD), tools)

	// FreeBSD 14.
	f, tools = parseSurvey("hostname nas\nkernel 14.1-RELEASE\nuser root\ngroups wheel operator\nuid 0\nboot \nconnection 10.77.0.1 54968 10.77.0.2 22\n" +
		"cpus 4\nzfs 2.2.4-FreeBSD_g256659204\ntool /sbin/zfs\nmbuffer \nhelp nc\nusage: nc [-46DdEFhklMNnrStUuvz] [-e policy] [-I length] [-i interval]\n" +
		"\tCommand Summary:\n\t\t-4\t\tUse IPv4\n\t\t-N\t\tShutdown the network socket after EOF on stdin\n\t\t--no-tcpopt\tDisable TCP options\n")
	require.Equal(t, "2.2.4-FreeBSD_g256659204", f.ZFS)
	require.Equal(t, []string{"wheel", "operator"}, tools.groups)
	tools.mbuffer, tools.groups = true, nil
	require.Equal(t, toolsOf("nc", sysinfo.OpenBSD), tools)

	// An unknown nc and a known one.
	_, tools = parseSurvey("hostname mac\ntool /usr/sbin/zfs\nmbuffer m\nhelp nc\nusage: nc [-46AacCDdEFhklMnOortUuvz]\n" +
		"\t-N num_probes\tNumber of probes to send before generating a write timeout event\nhelp ncat\nNcat 7.95 ( https://nmap.org/ncat )\nhelp netcat\nusage: nc\n")
	require.Equal(t, toolsOf("ncat", sysinfo.Ncat), tools)

	f, tools = parseSurvey("hostname x\nuid 1000\nconnection \ncpus \nzfs \ntool \nmbuffer \n")
	require.Equal(t, hosts.Facts{Hostname: "x", Backend: f.Backend}, f)
	require.False(t, tools.zfs || tools.mbuffer || tools.nc != "")
}

func toolsOf(nc, dialect string) tools {
	return tools{zfs: true, mbuffer: true, nc: nc, dialect: dialect}
}

// FuzzParseSurvey expects that a host's survey fills in facts, each from one line.
func FuzzParseSurvey(f *testing.F) {
	f.Add("hostname a\nkernel 6.1\nuser root\nuid 0\nboot x\nconnection 192.0.2.1 1 192.0.2.2 22\ncpus 4\nzfs 2.3.9-1\ntool /sbin/zfs\nmbuffer \nhelp nc\nOpenBSD netcat (Debian patchlevel 1.226-1)\n")
	f.Add("cpus -1\nuid 00\nhelp nc\nhelp ncat\nNcat 7.93\n")
	f.Add("help \nhelp x\n\nhelp nc\nusage: nc [-46]")
	f.Fuzz(func(t *testing.T, text string) {
		facts, tools := parseSurvey(text)
		for _, s := range []string{facts.Hostname, facts.Kernel, facts.User, facts.Boot, facts.ZFS, facts.SSHPeer, facts.SSHLocal, tools.nc} {
			require.NotContains(t, s, "\n")
			require.LessOrEqual(t, len(s), len(text))
		}
		require.GreaterOrEqual(t, facts.CPUs, 0)
		if facts.Root {
			require.Contains(t, text, "uid 0")
		}
	})
}

func FuzzSplitAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1:9", "[2001:db8::1]:65535", ":1", "a:ssh", "a:99999", "a", "[::1]", "a:-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := splitAddress(s)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, port, 0)
		require.LessOrEqual(t, port, 65535)
		again, text, err := net.SplitHostPort(net.JoinHostPort(host, strconv.Itoa(port)))
		require.NoError(t, err)
		require.Equal(t, host, again)
		require.Equal(t, strconv.Itoa(port), text)
		require.True(t, strings.Contains(s, host))
	})
}

// openHost opens a Host on a new connection.
func openHost(ctx context.Context, o sshexec.Options, nc bool) (*Host, error) {
	shared, err := sshexec.StartMaster(ctx, o)
	if err != nil {
		return nil, err
	}
	return Open(ctx, shared, nc)
}
