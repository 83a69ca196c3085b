package netcat

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

func TestDialArgs(t *testing.T) {
	t.Parallel()
	for dialect, c := range map[string]struct{ sends, receives []string }{
		sysinfo.OpenBSD:     {[]string{"-N", "h", "7"}, []string{"h", "7"}},
		sysinfo.Traditional: {[]string{"-q", "0", "h", "7"}, []string{"h", "7"}},
		sysinfo.Ncat:        {[]string{"--send-only", "h", "7"}, []string{"h", "7"}},
		sysinfo.BusyBox:     {[]string{"h", "7"}, []string{"h", "7"}},
		sysinfo.GNU:         {[]string{"-c", "h", "7"}, []string{"h", "7"}},
		sysinfo.UnknownNC:   {nil, nil},
		"":                  {nil, nil},
	} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			got, ok := dialArgs(dialect, "h", 7, true)
			require.Equal(t, c.sends, got)
			require.Equal(t, c.sends != nil, ok)
			got, _ = dialArgs(dialect, "h", 7, false)
			require.Equal(t, c.receives, got)
		})
	}
}

func TestScriptsQuoteAndKeepTheSecretOutOfArguments(t *testing.T) {
	t.Parallel()
	d := dialer{nc: []string{"nc", "-N", "::1", "7"}, secret: "5ec7e7", buffer: 1 << 20, silence: 30 * time.Second}
	argv := []string{"zfs", "receive", "-o", "a:b=it's $HOME\n`id`", "pool/a b"}
	for _, script := range []string{d.receive(argv), d.send(argv)} {
		require.Contains(t, script, zfs.CommandLine(argv))
		require.Equal(t, 1, strings.Count(script, "5ec7e7"))
		require.Contains(t, script, "echo 5ec7e7", "by what is built in")
		require.Contains(t, script, "mbuffer -q -m 1024k")
		for _, shell := range [][]string{{"sh"}, {"bash"}, {"busybox", "sh"}} {
			if _, err := exec.LookPath(shell[0]); err != nil {
				continue
			}
			out, err := exec.Command(shell[0], append(shell[1:], "-n", "-c", script)...).CombinedOutput()
			require.NoError(t, err, "%v: %s\n%s", shell, out, script)
		}
	}
}

// A word of a command line reaches the command as it is, whatever a shell
// makes of it at the beginning of a word: the base of a stream may be "#mark".
func TestScriptsPassWordsAsTheyAre(t *testing.T) {
	t.Parallel()
	said := filepath.Join(t.TempDir(), "said")
	argv := []string{"/bin/sh", "-c", `printf '%s\0' "$@" >"$0"`, said,
		"-i", "#mark", "~", "a#b", "it's $HOME `id` \\", "x\ny", "", "!", "{a,b}", "=ls", "*", "-", "\r"}
	d := dialer{nc: []string{"cat"}, secret: "5ec7e7", silence: 30 * time.Second}
	for name, script := range map[string]string{"send": d.send(argv), "receive": d.receive(argv), "one": elsewhere{}.script(argv)} {
		cmd := exec.Command("sh", "-c", script)
		beats, err := cmd.StdinPipe() // without end: that would end nc
		require.NoError(t, err)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		_ = beats.Close()
		got, err := os.ReadFile(said)
		require.NoError(t, err, "%s: %s", name, out)
		require.Equal(t, argv[4:], strings.Split(strings.TrimSuffix(string(got), "\x00"), "\x00"), name)
		require.NoError(t, os.Remove(said))
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
	f, tools = parseSurvey("hostname nas\nkernel 14.1-RELEASE\nuser root\nuid 0\nboot \nconnection 10.77.0.1 54968 10.77.0.2 22\n" +
		"cpus 4\nzfs 2.2.4-FreeBSD_g256659204\ntool /sbin/zfs\nmbuffer \nhelp nc\nusage: nc [-46DdEFhklMNnrStUuvz] [-e policy] [-I length] [-i interval]\n" +
		"\tCommand Summary:\n\t\t-4\t\tUse IPv4\n\t\t-N\t\tShutdown the network socket after EOF on stdin\n\t\t--no-tcpopt\tDisable TCP options\n")
	require.Equal(t, "2.2.4-FreeBSD_g256659204", f.ZFS)
	tools.mbuffer = true
	require.Equal(t, toolsOf("nc", sysinfo.OpenBSD), tools)

	// An nc that is not known, and one that is.
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

// plainHost is a host that is a directory of programs: a zfs that does what a
// test says, and an nc.
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

// inPath returns a command line with the absolute path of its program, because the PATH of
// a plain host lacks those of scripts/programs. It skips the test if there is none.
func inPath(t *testing.T, command string) string {
	t.Helper()
	program, args, _ := strings.Cut(command, " ")
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not in PATH", program)
	}
	return strings.TrimSpace(path + " " + args)
}

func offer() tcp.Offer { return tcp.Offer{Address: "127.0.0.1", Deadline: testenv.Timeout()} }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// The fake zfs keeps what it receives in a file, and sends what is in it.
const keeps = `case $1 in receive) cat >stream;; send) cat stream;; esac`

// freebsd is a command like FreeBSD's nc: OpenBSD's without the first line of its help.
const freebsd = `sh -c 'nc=$0; [ "$1" != -h ] || { "$nc" -h 2>&1 | sed 1d; exit; }; exec "$nc" "$@"' `

func TestDialects(t *testing.T) {
	t.Parallel()
	for name, nc := range map[string]string{"nc.openbsd": "nc.openbsd", "nc.traditional": "nc.traditional", "ncat": "ncat", "busybox nc": "busybox nc", "FreeBSD's": freebsd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if nc == freebsd {
				nc += inPath(t, "nc.openbsd")
			}
			dir, h := open(t, nc, keeps)
			for _, size := range []int{0, 1, 3_000_000} {
				data := random(size)
				sink, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 4<<20)
				require.NoError(t, err)
				_, err = sink.Write(data)
				require.NoError(t, err)
				require.NoError(t, sink.Commit(t.Context()))
				stored, err := os.ReadFile(filepath.Join(dir, "stream"))
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, stored), "%d bytes arrived, %d were sent", len(stored), size)

				src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, offer(), 4<<20)
				require.NoError(t, err)
				got, err := io.ReadAll(src)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got), "%d bytes came, %d were sent", len(got), size)
				require.NoError(t, src.Close())
			}
		})
	}
}

// anyNC is one that is installed.
func anyNC(t *testing.T) string {
	t.Helper()
	for _, nc := range []string{"nc.openbsd", "nc.traditional", "ncat", "busybox"} {
		if _, err := exec.LookPath(nc); err == nil {
			return strings.Replace(nc, "busybox", "busybox nc", 1)
		}
	}
	t.Skip("no nc is installed")
	return ""
}

func TestAFailedReceiveTellsWhy(t *testing.T) {
	t.Parallel()
	_, h := open(t, anyNC(t), `[ "$1" != receive ] || { head -c 1000 >/dev/null; echo "cannot receive new filesystem stream: permission denied" >&2; exit 1; }`)
	sink, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.NoError(t, err)
	for err == nil {
		_, err = sink.Write(random(1 << 20))
	}
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Permission})
	require.ErrorContains(t, err, "beta: ")
	require.ErrorIs(t, sink.Abort(err), &zfs.Error{Kind: zfs.Permission})
}

// What was given up reaches zfs receive as a stream that ends early.
func TestAnAbortedReceive(t *testing.T) {
	t.Parallel()
	dir, h := open(t, anyNC(t), `cat >stream; echo "cannot receive resume stream: incomplete stream" >&2; exit 1`)
	sink, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.NoError(t, err)
	_, err = sink.Write(random(1000))
	require.NoError(t, err)
	require.NoError(t, sink.Abort(errors.New("the source failed")))
	stored, err := os.ReadFile(filepath.Join(dir, "stream"))
	require.NoError(t, err)
	require.Len(t, stored, 1000)
}

// A firewall that lost its state resets the connection here, and the host's nc
// waits on: it is told to end, and zfs receive saves what came.
func TestAReceiveWhoseConnectionBrokeHereOnly(t *testing.T) {
	t.Parallel()
	dir, h := open(t, anyNC(t), `cat >stream; echo "cannot receive resume stream: incomplete stream" >&2; exit 1`)
	nc := filepath.Join(dir, "nc")
	text, err := os.ReadFile(nc)
	require.NoError(t, err)
	text = append(bytes.Replace(text, []byte("exec "), nil, 1), "exec sleep 100000\n"...)
	h.ending = 24 * time.Hour // nothing waits for it
	require.NoError(t, os.WriteFile(nc, text, 0o700))
	opened, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.NoError(t, err)
	_, err = opened.Write(random(1000))
	require.NoError(t, err)
	require.NoError(t, opened.(*sink).conn.Close())
	_, err = opened.Write(random(1000))
	require.ErrorIs(t, err, tcp.ErrCut)
	require.NoError(t, opened.Abort(err))
	stored, err := os.ReadFile(filepath.Join(dir, "stream"))
	require.NoError(t, err)
	require.Len(t, stored, 1000)
}

// No end of file is taken for the end of a stream whose producer failed.
func TestAFailedSendIsNoEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		zfs  string
		want error
	}{
		"fails":     {`head -c 5000 /dev/zero; echo "warning: cannot send 'pool/a@x': Input/output error" >&2; exit 1`, &zfs.Error{Kind: zfs.PoolFault}},
		"killed":    {`head -c 5000 /dev/zero; kill -9 $$`, &zfs.Error{Kind: zfs.Killed}},
		"at once":   {`echo "cannot open 'pool/a@x': dataset does not exist" >&2; exit 1`, &zfs.Error{Kind: zfs.NotFound}},
		"nc killed": {`head -c 5000 /dev/zero; while [ ! -e connected ]; do sleep 0.01; done; kill -9 $(cat nc.pid); exec yes`, tcp.ErrCut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, h := open(t, anyNC(t), "case $1 in send) "+c.zfs+"\nesac")
			nc := filepath.Join(dir, "nc")
			text, err := os.ReadFile(nc)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(nc, bytes.Replace(text, []byte("exec"), []byte("echo $$ >"+filepath.Join(dir, "nc.pid")+"\nexec"), 1), 0o700))
			src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, offer(), 0)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "connected"), nil, 0o600))
			_, err = io.ReadAll(src)
			require.ErrorIs(t, err, c.want)
			require.NoError(t, src.Close())
		})
	}
}

// What the shell says of an nc that zxfer ended is no message of the command's.
func TestAnNCThatIsEndedIsNotSpokenOf(t *testing.T) {
	t.Parallel()
	d := dialer{nc: []string{"sleep", "60"}, secret: "00", silence: time.Second}
	for name, script := range map[string]string{"send": d.send([]string{"true"}), "receive": d.receive([]string{"cat"})} {
		var said strings.Builder
		sh := exec.CommandContext(t.Context(), "sh", "-c", script)
		sh.Stdin, sh.Stderr = strings.NewReader(""), &said
		_ = sh.Run()
		require.Empty(t, said.String(), name)
	}
}

// zfs send -I goes on behind a snapshot that it could not send: what the receiver
// makes of that is an echo, and what it refused stays said.
func TestAFailedSendIsTheCauseOfWhatItsReceiverSays(t *testing.T) {
	t.Parallel()
	_, h := open(t, anyNC(t), `echo "warning: cannot send 'pool/a@b': signal received" >&2; head -c 1000000 /dev/zero; exit 1`)
	src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", From: "@a", Through: []string{"b"}, To: "c"}, offer(), 0)
	require.NoError(t, err)
	_, err = io.ReadFull(src, make([]byte, 1000))
	require.NoError(t, err)
	require.NoError(t, src.Close())
	cut, short := errors.New("cut"), &zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive}
	gate := &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Detail: "not planned", Hint: "look"}
	require.ErrorIs(t, hosts.CauseOf(src, cut), cut)
	err = hosts.CauseOf(src, short)
	require.EqualError(t, err, "beta: zfs send pool/a@c: warning: cannot send 'pool/a@b': signal received")
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Killed})
	err = hosts.CauseOf(src, gate)
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Killed})
	require.ErrorContains(t, err, "signal received; the target says: zfs receive: not planned")
	require.Equal(t, "look", fault.HintOf(err))
}

// What a host names becomes names here.
func TestAnAnswerToSomethingElseIsNone(t *testing.T) {
	t.Parallel()
	_, h := open(t, anyNC(t), `case "$*" in
*" property -s "*) echo type;;
*" type pool/a") printf 'pool/b\ttype\tfilesystem\tlocal\n';;
*userrefs*) printf 'pool/b@x\tuserrefs\t1\t-\n';;
get*) printf 'pool/b\ttype\tfilesystem\t-\npool/b\tguid\t7\t-\npool/b\tcreatetxg\t7\t-\n';;
holds*) printf 'pool/b@x\tkeep\tMon Jan  1 00:00 2024\n';;
esac`)
	_, list := h.List(t.Context(), hosts.ListQuery{Dataset: "pool/a", Recursive: true, Alone: true})
	_, properties := h.Properties(t.Context(), []string{"pool/a"}, nil)
	_, holds := h.Holds(t.Context(), []string{"pool/a@x"})
	for name, err := range map[string]error{"list": list, "properties": properties, "holds": holds} {
		require.ErrorContains(t, err, "pool/b", name)
		require.ErrorContains(t, err, "asked", name)
	}
}

// A host that hears nothing of zxfer ends what it was told to do.
func TestSilenceEndsTheToolsThere(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("timeout"); err != nil {
		t.Skip("timeout is not installed")
	}
	dir, h := open(t, anyNC(t), `cat >stream; echo "cannot receive: failed to read from stream" >&2; exit 1`)
	h.silence = time.Second // beats come every five
	sink, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.NoError(t, err)
	_, err = sink.Write(random(1000))
	require.NoError(t, err)
	for err == nil {
		_, err = sink.Write([]byte("x"))
		time.Sleep(10 * time.Millisecond)
	}
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Incomplete})
	require.NoError(t, sink.Abort(err))
	require.FileExists(t, filepath.Join(dir, "stream"))
}

// Strangers are dropped, and the host's own nc is waited for.
func TestAStrangerIsDropped(t *testing.T) {
	t.Parallel()
	dir, h := open(t, anyNC(t), keeps)
	logged := make(chan string, 1)
	h.log = func(s string) { logged <- s }
	nc := filepath.Join(dir, "nc")
	text, err := os.ReadFile(nc)
	require.NoError(t, err)
	start := filepath.Join(dir, "start")
	require.NoError(t, os.WriteFile(nc, bytes.Replace(text, []byte("exec"), []byte(`for port; do :; done; echo $port >`+dir+`/port.new; mv `+dir+`/port.new `+dir+`/port
while [ ! -e `+start+` ]; do sleep 0.01; done
exec`), 1), 0o700))
	go func() {
		port := filepath.Join(dir, "port")
		for {
			if text, err := os.ReadFile(port); err == nil {
				c, err := net.Dial("tcp", "127.0.0.1:"+strings.TrimSpace(string(text)))
				if err == nil {
					_, _ = c.Write([]byte(strings.Repeat("0", 64) + "\n"))
					_, _ = io.ReadAll(c) // until it is dropped
				}
				_ = os.WriteFile(start, nil, 0o600)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	sink, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.NoError(t, err)
	require.NoError(t, sink.Commit(t.Context()))
	require.Contains(t, <-logged, "it does not begin with the secret")
}

func TestHostsThatLackSomething(t *testing.T) {
	t.Parallel()
	dir, o := plainHost(t, "cat /dev/null;", keeps)
	for _, other := range []string{"ncat", "netcat"} {
		require.NoError(t, os.Link(filepath.Join(dir, "nc"), filepath.Join(dir, other)))
	}
	_, err := Open(t.Context(), o)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "beta: its nc is of no dialect that zxfer knows")

	_, h := open(t, anyNC(t), keeps)
	h.tools.nc = "false"
	_, err = h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
	require.ErrorContains(t, err, "beta: false did not reach 127.0.0.1:")
	_, digests := hosts.RoleOf[hosts.Digester](h)
	_, devices := hosts.RoleOf[hosts.Devices](h)
	_, moves := hosts.RoleOf[hosts.Mover](h)
	_, tells := hosts.RoleOf[hosts.Measurer](h)
	for _, err := range []error{digests, devices, moves, tells} {
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.ErrorContains(t, err, "beta: without zxfer there it cannot ")
	}

	_, err = h.Properties(t.Context(), []string{"pool/a b"}, []string{"guid"})
	require.NoError(t, err, "a command without output")
	o.Command = "false"
	_, err = Open(t.Context(), o)
	require.ErrorContains(t, err, "beta: ")
}
