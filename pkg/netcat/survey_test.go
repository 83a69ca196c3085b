package netcat

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/sysinfo"
)

func TestParseSurvey(t *testing.T) {
	t.Parallel()
	// Debian 13, over ssh.
	f, tools := parseSurvey("hostname beta\nkernel 6.12.90\nuser root\nuid 0\nboot 5c0b9b66\nconnection 10.77.0.1 54968 10.77.0.2 22\n" +
		"cpus 4\nzfs 2.3.9-0+deb13u1\ntool /usr/sbin/zfs\nmbuffer /usr/bin/mbuffer\nhelp nc\nOpenBSD netcat (Debian patchlevel 1.229-1)\n")
	require.Equal(t, hosts.Facts{Hostname: "beta", Kernel: "6.12.90", User: "root", Root: true, Boot: "5c0b9b66", SSHPeer: "10.77.0.1",
		SSHLocal: "10.77.0.2", CPUs: 4, ZFS: "2.3.9-0+deb13u1", Backend: "zfs command line through the remote shell"}, f)
	require.Equal(t, toolsOf("nc", sysinfo.OpenBSD), tools)

	// FreeBSD 14.
	f, tools = parseSurvey("hostname nas\nkernel 14.1-RELEASE\nuser root\nuid 0\nboot \nconnection 10.77.0.1 54968 10.77.0.2 22\n" +
		"cpus 4\nzfs 2.2.4-FreeBSD_g256659204\ntool /sbin/zfs\nmbuffer \nhelp nc\nusage: nc [-46DdEFhklMNnrStUuvz] [-e policy] [-I length] [-i interval]\n" +
		"\tCommand Summary:\n\t\t-4\t\tUse IPv4\n\t\t-N\t\tShutdown the network socket after EOF on stdin\n\t\t--no-tcpopt\tDisable TCP options\n")
	require.Equal(t, "2.2.4-FreeBSD_g256659204", f.ZFS)
	tools.mbuffer = true
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

// A host's survey fills in facts, each from one line.
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
