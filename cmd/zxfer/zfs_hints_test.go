package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
)

// hintedCommand matches the command of a hint.
var hintedCommand = regexp.MustCompile(`(?:^|: )((?:ssh|zfs|zpool|zxfer|fuser|umount) .*)$`)

// hintCommands returns the commands of the hints in a text.
func hintCommands(stderr string) (out []string) {
	for line := range strings.Lines(stderr) {
		if hint, ok := strings.CutPrefix(strings.TrimSpace(line), "hint: "); ok {
			if found := hintedCommand.FindStringSubmatch(hint); found != nil {
				out = append(out, found[1])
			}
		}
	}
	return out
}

// checkHints fails the test if a command in a hint of zxfer could not be pasted: it must be words of a shell, its ssh must
// go to a host of the lab or of the arguments, and zxfer must parse its own commands.
func checkHints(t *testing.T, o cmdResult, args []string) {
	t.Helper()
	if strings.ContainsAny(o.stderr, "\x01\x02\x03\x04") {
		t.Errorf("the output has marks of commands: %q", o.stderr)
	}
	for line := range strings.Lines(o.stderr) {
		parts := strings.Split(line, ": ")
		for i, p := range parts[1:] {
			if p == parts[i] && (p == "alpha" || p == "beta" || p == hosts.LocalName) {
				t.Errorf("the host %s is named twice: %s", p, line)
			}
		}
	}
	for _, c := range hintCommands(o.stderr) {
		if why := badCommand(c, strings.Join(args, " ")); why != "" {
			t.Errorf("hint: %s: %s", c, why)
		}
	}
}

// sshCommand matches ssh with its flags, and captures the host and the command.
var sshCommand = regexp.MustCompile(`^ssh(?: -[Cnt]+| -[FiopSl] ?\S+)* (\S+) (.*)$`)

// badCommand returns why a command of a hint cannot be pasted, or "".
func badCommand(command, args string) string {
	words, err := shellquote.Split(comment.ReplaceAllString(command, ""))
	if err != nil {
		return err.Error()
	}
	switch words[0] {
	case "ssh":
		found := sshCommand.FindStringSubmatch(strings.Join(words, " "))
		if found == nil {
			return "not a command of ssh HOST"
		}
		host := found[1][strings.LastIndexByte(found[1], '@')+1:]
		if host != "alpha" && host != "beta" && !strings.Contains(args, host) {
			return "the situation has no host " + host
		}
		return badCommand(found[2], args)
	case "zxfer":
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "…") }) {
			return ""
		}
		if err := parseCommand(words[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
			return err.Error()
		}
	}
	return ""
}

// TestBadCommand expects checkHints to find commands that cannot be pasted.
func TestBadCommand(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"zfs list", "zxfer send --help", "zxfer send tank/a b:c", "ssh -F /c beta zpool list", "ssh -t -F /c root@beta 'zxfer replicate run home'", "ssh nas zpool list"} {
		require.Empty(t, badCommand(good, "send tank/a nas:b"), good)
	}
	for _, bad := range []string{"zfs list 'a", "ssh -F /c gamma zpool list", "ssh beta", "zxfer send --no-such-flag a b", "ssh beta 'zxfer replicate sned'", "zxfer send --rollback"} {
		require.NotEmpty(t, badCommand(bad, "send tank/a nas:b"), bad)
	}
}

// pasteHint runs a command in a shell on alpha, without a terminal.
func pasteHint(t *testing.T, command string) (string, error) {
	t.Helper()
	p := prepareProcess(t, nil, "timeout", "20", "sh", "-c", command)
	p.cmd.Stdout, p.cmd.Stderr = nil, nil
	out, err := p.cmd.CombinedOutput()
	return string(out), err
}

// TestZFSHints makes a situation on the local or the other host, and pastes each command of the
// hints into a shell. Each command names its host and exits with 0. After the one that repairs the
// situation, the same zxfer command succeeds.
func TestZFSHints(t *testing.T) {
	lab(t)
	require.NoError(t, os.MkdirAll(labDir+"/bin", 0o755))
	link := filepath.Join(labDir, "bin", "zxfer")
	if _, err := os.Lstat(link); err != nil {
		require.NoError(t, os.Symlink(alphaBin, link))
		t.Cleanup(func() { _ = os.Remove(link) })
	}
	type situation struct {
		make   func(t *testing.T, src, dst string)
		args   func(src, to string) []string
		repair string // part of the command that repairs it, "" = the commands only inform
		least  int    // commands
		flag   string // the flag that a hint offers in place of a command
	}
	send := func(flags ...string) func(src, to string) []string {
		return func(src, to string) []string { return append(append([]string{"send"}, flags...), src, to) }
	}
	snapshots := func(t *testing.T, d string, names ...string) {
		for _, n := range names {
			fill(t, d, n, 20<<10)
			zfsCmd(t, "snapshot", d+"@"+n)
		}
	}
	copied := func(t *testing.T, src, dst string) {
		zfsCmd(t, "create", src)
		snapshots(t, src, "a")
		mustZxfer(t, "send", "--wire", "ssh", src, "beta:"+dst)
		snapshots(t, src, "b")
	}
	change := func(t *testing.T, d string) {
		zfsCmd(t, "set", "readonly=off", "canmount=noauto", d)
		mount(t, d)
		fill(t, d, "theirs", 20<<10)
		zfsCmd(t, "unmount", d)
	}
	for name, s := range map[string]situation{
		"no pool": {make: copied, least: 1, args: func(src, to string) []string {
			return []string{"send", src, strings.ReplaceAll(to, betaPool+"/", "zxnowhere/")}
		}},
		"no dataset": {make: copied, least: 1, args: func(src, to string) []string {
			return []string{"send", to + "/nowhere", betaPool + "/elsewhere"}
		}},
		"modified": {repair: "zfs rollback ", least: 2, args: send(), make: func(t *testing.T, src, dst string) {
			copied(t, src, dst)
			change(t, dst)
		}},
		"diverged": {flag: "--rollback", args: send(), make: func(t *testing.T, src, dst string) {
			copied(t, src, dst)
			change(t, dst)
			zfsCmd(t, "snapshot", dst+"@theirs")
		}},
		"held": {repair: "zfs release ", least: 1, args: send("--rollback"), make: func(t *testing.T, src, dst string) {
			copied(t, src, dst)
			change(t, dst)
			zfsCmd(t, "snapshot", dst+"@theirs")
			zfsCmd(t, "hold", "mine now", dst+"@theirs")
		}},
		"no common snapshot": {repair: "zfs rename ", least: 1, args: send(), make: func(t *testing.T, src, dst string) {
			zfsCmd(t, "create", src)
			snapshots(t, src, "a")
			zfsCmd(t, "create", dst)
			snapshots(t, dst, "other")
			t.Cleanup(func() { cleanUp(dst + "-old") })
		}},
		"name taken": {repair: "zfs rename ", least: 1, args: send("--rollback"), make: func(t *testing.T, src, dst string) {
			zfsCmd(t, "create", src)
			snapshots(t, src, "a")
			zfsCmd(t, "create", dst)
			snapshots(t, dst, "a")
			t.Cleanup(func() { cleanUp(dst + "-old") })
		}},
		"quota": {least: 1, args: send(), make: func(t *testing.T, src, dst string) {
			copied(t, src, dst)
			fill(t, src, "large", 8<<20)
			zfsCmd(t, "snapshot", src+"@c")
			zfsCmd(t, "set", "quota=1M", dst)
		}},
		"locked parent": {repair: "zfs load-key ", least: 1, make: func(t *testing.T, src, dst string) {
			zfsCmd(t, "create", src)
			snapshots(t, src, "a")
			encryptedDataset(t, dst)
			lockDataset(t, dst)
		}, args: func(src, to string) []string { return []string{"send", src, to + "/child"} }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, host := range []string{"", "beta"} {
				t.Run("host "+host, func(t *testing.T) {
					src, dst := dataset(t)
					s.make(t, src, dst)
					to, shell := dst, ""
					if host != "" {
						to, shell = host+":"+dst, "ssh -F "+labDir+"/ssh_config "+host+" "
					}
					args := s.args(src, to)
					o := zxfer(t, args...)
					require.NotZero(t, o.code, o)
					checkHints(t, o, args)
					all := hintCommands(o.stderr)
					require.GreaterOrEqual(t, len(all), s.least, o)
					repair := ""
					for _, c := range all {
						if shell != "" {
							require.True(t, strings.HasPrefix(strings.Replace(c, "ssh -t -F", "ssh -F", 1), shell) || strings.Contains(c, " -t "+host+" "), "%s\n%s", c, o)
						} else {
							require.NotContains(t, c, "ssh ", o)
						}
						if s.repair != "" && strings.Contains(c, s.repair) {
							repair = c
							continue
						}
						out, err := pasteHint(t, c)
						require.NoError(t, err, "%s\n%s", c, out)
					}
					switch {
					case s.flag != "":
						require.Contains(t, o.stderr, ": "+s.flag+"\n")
						args = append([]string{args[0], s.flag}, args[1:]...)
					case s.repair == "":
						return
					default:
						require.NotEmpty(t, repair, o)
						out, err := pasteHint(t, repair)
						require.NoError(t, err, "%s\n%s", repair, out)
					}
					mustZxfer(t, args...)
				})
			}
		})
	}
}

// TestZFSHintsOfPools is TestZFSHints for a target on its own pool, for missing snapshots and for an unknown host.
func TestZFSHintsOfPools(t *testing.T) {
	lab(t)
	const pool = "zxhint"
	type situation struct {
		make   func(t *testing.T, src string) // pool has the dataset copy, to which src@a was sent
		args   func(src, to string) []string
		then   func(src, to string) []string // the command with the flag of the hint, or nil
		local  bool                          // only on the local host
		want   string                        // part of the error
		has    []string                      // parts of the commands, in order
		repair func(t *testing.T)            // what the user does by hand, or nil; then the command succeeds
	}
	send := func(src, to string) []string { return []string{"send", src, to} }
	for name, s := range map[string]situation{
		"exported pool": {args: send, want: "no such pool: " + pool, has: []string{"zpool list", "zpool import"},
			make:   func(t *testing.T, _ string) { run(t, "zpool", "export", pool) },
			repair: func(t *testing.T) { run(t, "zpool", "import", "-d", "/dev/mapper", pool) }},
		"read-only pool": {args: send, want: "read-only", has: []string{"zpool export " + pool},
			make: func(t *testing.T, _ string) {
				run(t, "zpool", "export", pool)
				run(t, "zpool", "import", "-N", "-d", "/dev/mapper", "-o", "readonly=on", pool)
			},
			repair: func(*testing.T) {}}, // the hint repairs it
		"full pool": {args: send, want: "space", has: []string{"zfs list"},
			make: func(t *testing.T, src string) {
				fill(t, src, "large", 100<<20)
				zfsCmd(t, "snapshot", src+"@c")
			}},
		"missing snapshot": {args: func(src, to string) []string { return []string{"send", src + "@nowhere", to} }, want: "has no snapshot @nowhere", local: true,
			then: func(src, to string) []string { return []string{"send", "--snapshot", "nowhere", src, to} }},
		"missing snapshot of a copy": {args: func(src, to string) []string { return []string{"send", to + "@nowhere", src + "-2"} }, want: "has no snapshot @nowhere",
			then: func(src, to string) []string { return []string{"send", "--snapshot", "nowhere", to, src + "-2"} }},
		"unknown host": {args: func(src, _ string) []string { return []string{"send", src, "nowhere:tank/a"} }, want: "nowhere", has: []string{"nowhere"}, local: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, host := range []string{"", "beta"} {
				if s.local && host != "" {
					continue
				}
				t.Run("host "+host, func(t *testing.T) {
					src, _ := dataset(t)
					disk := newLabDisk(t, "zxhint", 96<<20)
					disk.createPool(pool)
					zfsCmd(t, "create", src)
					fill(t, src, "a", 20<<10)
					zfsCmd(t, "snapshot", src+"@a")
					to, shell := pool+"/copy", ""
					mustZxfer(t, "send", "--wire", "ssh", src, "beta:"+to)
					fill(t, src, "b", 20<<10)
					zfsCmd(t, "snapshot", src+"@b")
					if host != "" {
						to, shell = host+":"+to, "ssh -F "+labDir+"/ssh_config "+host+" "
					}
					if s.make != nil {
						s.make(t, src)
					}
					args := s.args(src, to)
					o := zxfer(t, args...)
					require.NotZero(t, o.code, o)
					require.Contains(t, o.stderr, s.want)
					all := hintCommands(o.stderr)
					for i, part := range s.has {
						require.Greater(t, len(all), i, o)
						require.Contains(t, all[i], part)
					}
					for _, c := range all {
						require.True(t, name == "unknown host" || strings.HasPrefix(strings.Replace(c, "ssh -t -F", "ssh -F", 1), shell), "%s\n%s", c, o)
						if name == "unknown host" {
							continue
						}
						// A search of all of /dev takes more than 20 s in the guest, and the sshd of beta has its own mounts.
						c = strings.ReplaceAll(c, "zpool import "+pool, "zpool import -N "+pool)
						out, err := pasteHint(t, strings.ReplaceAll(c, "zpool import", "zpool import -d /dev/mapper"))
						require.NoError(t, err, "%s\n%s", c, out)
					}
					if s.then != nil {
						t.Cleanup(func() { cleanUp(src + "-2") })
						require.Contains(t, o.stderr, ": --snapshot nowhere\n")
						mustZxfer(t, s.then(src, to)...)
					}
					if s.repair != nil {
						s.repair(t)
						mustZxfer(t, args...)
					}
				})
			}
		})
	}
}

// TestZFSHintsOfJob expects that a job's hints are commands for the job's hosts, and never only a flag
// of zxfer send.
func TestZFSHintsOfJob(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	file := filepath.Join(t.TempDir(), "jobs.toml")
	require.NoError(t, os.WriteFile(file, []byte("[[job]]\nname = \"hints\"\nsource = \""+src+"\"\nsnapshots.take = \"%Y-%m-%d_%H:%M:%S\"\n[[job.target]]\nname = \"b\"\nto = \"beta:"+dst+"\"\n"), 0o600))
	state := t.TempDir()
	job := func() cmdResult {
		return zxfer(t, "replicate", "run", "-c", file, "--state-dir", state, "hints")
	}
	first := job()
	require.Zero(t, first.code, first)
	zfsCmd(t, "set", "readonly=off", "canmount=noauto", dst)
	mount(t, dst)
	fill(t, dst, "theirs", 20<<10)
	zfsCmd(t, "unmount", dst)
	zfsCmd(t, "snapshot", dst+"@theirs")
	fill(t, src, "ours", 20<<10)
	o := job()
	require.Equal(t, 1, o.code, o)
	checkHints(t, o, nil)
	var repair string
	for _, c := range hintCommands(o.stderr) {
		require.NotRegexp(t, `zxfer send( --[a-z-]+)*$`, c)
		if strings.HasPrefix(c, "zxfer send --rollback ") {
			repair = strings.Replace(c, "zxfer", alphaBin, 1)
		}
	}
	require.NotEmpty(t, repair, o)
	out, err := pasteHint(t, repair)
	require.NoError(t, err, "%s\n%s", repair, out)
	again := job()
	require.Zero(t, again.code, again)
}

// TestForgottenPool expects the endpoint that a user with a forgotten pool meant.
func TestForgottenPool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := runQuick(t, dir, "send", "tank/home", "root@backup1")
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "hint: for a host, write root@backup1:POOL\n")
	file := filepath.Join(dir, "jobs.toml")
	require.NoError(t, os.WriteFile(file, []byte("[[job]]\nname = \"j\"\nsource = \"tank/a\"\n[[job.target]]\nname = \"b\"\nto = \"root@backup1\"\n"), 0o600))
	o = runQuick(t, dir, "replicate", "check", "-c", file)
	require.Equal(t, 2, o.code)
	require.Contains(t, o.stderr, "write root@backup1:POOL")
	require.NotContains(t, o.stderr, "makes it a snapshot")
}

func runQuick(t *testing.T, dir string, args ...string) cmdResult {
	t.Helper()
	program := filepath.Join(dir, "zxfer")
	require.NoError(t, installSelf(t, program))
	c := exec.Command(program, args...)
	var stdout, stderr lockedBuffer
	c.Stdout, c.Stderr = &stdout, &stderr
	_ = c.Run()
	return cmdResult{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}
