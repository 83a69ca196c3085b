package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faultPool is the pool on a disk that can fail.
const faultPool = "zxchaos"

// isProcess tells by its command line whether a process is one of a transfer.
func isProcess(name string) func(argv []string) bool {
	return func(argv []string) bool {
		base, line := filepath.Base(argv[0]), strings.Join(argv, " ")
		switch name {
		case "zxfer":
			return base == "zxfer" && len(argv) > 1 && argv[1] != "agent"
		case "agent":
			return isAgent(argv)
		case "zfs send", "zfs receive":
			return isZFS(strings.Fields(name)[1])(argv)
		case "sshd":
			return strings.HasPrefix(argv[0], "sshd") && strings.HasSuffix(argv[0], ": root@notty")
		case "python":
			return strings.Contains(line, "libzfs_core")
		case "nc":
			return strings.HasPrefix(base, "nc")
		case "other host":
			return !strings.Contains(line, "[listener]")
		}
		return base == name
	}
}

// victims are the processes of that name, on both hosts.
func victims(t *testing.T, name string) []int {
	t.Helper()
	pids := pidsOn(t, betaPool, isProcess(name))
	if name != "other host" {
		pids = append(pids, pidsOn(t, alphaPool, isProcess(name))...)
	}
	return pids
}

// before does what has to be there before the command is started, and returns its
// environment and what undoes it.
func (r *round) before(h hit) (env []string, undo func()) {
	switch h.fault {
	case "netem":
		run(r.t, append([]string{labScript(), "net"}, strings.Fields(h.arg)...)...)
		return nil, func() { run(r.t, labScript(), "mend") }
	case "version":
		return []string{"ZXFER_RSH=" + r.otherVersion(h.arg)}, func() {}
	}
	return nil, func() {}
}

// otherVersion is a remote shell that leads to another zxfer than this.
func (r *round) otherVersion(which string) string {
	ssh := "ssh -F " + labDir + "/ssh_config"
	other := os.Getenv("ZXFER_CHAOS_OTHER")
	if other == "" {
		other = alphaBin // what a forced command starts
	}
	script := map[string]string{
		"protocol": fmt.Sprintf("exec %s \"$1\" %s agent | sed -u 's/^zxfer-agent [0-9]* /zxfer-agent 99 /'", ssh, alphaBin),
		"machine":  "printf '\\nzxfer-need Linux riscv64\\n'; exec cat >/dev/null",
		"other":    fmt.Sprintf("exec %s \"$1\" %s agent", ssh, other),
	}[which]
	file := filepath.Join(r.t.TempDir(), "rsh")
	require.NoError(r.t, os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	return file
}

// strike does what goes wrong while p runs, until it is over. What outlasts it is
// undone after the attempt.
func (r *round) strike(p *process, h hit, argv []string) (undo func()) {
	if h.moving {
		r.moving(p)
	}
	if !sleepUnless(p, h.after) {
		r.logf("it ended before")
		return func() {}
	}
	r.logf("%s %s", h.fault, h.arg)
	switch h.fault {
	case "kill":
		r.signal(h.arg, syscall.SIGKILL)
	case "stop":
		r.signal(h.arg, syscall.SIGSTOP)
		time.Sleep(h.lasts)
		r.signal(h.arg, syscall.SIGCONT)
	case "signal":
		_ = p.cmd.Process.Signal(map[string]os.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP}[h.arg])
	case "cut":
		run(r.t, labScript(), "cut")
		time.Sleep(h.lasts)
		run(r.t, labScript(), "mend")
	case "reset":
		resetConnections(r.t, p)
	case "clock":
		return r.setClock(h.arg)
	case "rival":
		o := start(r.t, argv...).wait(r.t)
		r.logf("the rival: %s", o)
	case "full":
		return r.fill()
	case "disk":
		return r.breakDisk(p, h)
	}
	return func() {}
}

// sleepUnless sleeps; false if the process ends meanwhile.
func sleepUnless(p *process, d time.Duration) bool {
	select {
	case <-p.done:
		return false
	case <-time.After(d):
		return true
	}
}

// moving waits until data moves, or the process ends, or for a while.
func (r *round) moving(p *process) {
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); {
		if !sleepUnless(p, 60*time.Millisecond) {
			return
		}
		if r.c.is("dev", "delta") {
			if strings.Contains(p.stderr.String(), `"event":"started"`) {
				return
			}
		} else if len(victims(r.t, "zfs receive")) > 0 {
			return
		}
	}
}

func (r *round) signal(name string, s syscall.Signal) {
	pids := victims(r.t, name)
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // it may have ended by itself
	}
	r.logf("%v to %d processes", s, len(pids))
}

// setClock moves the clock of both hosts, which is one.
func (r *round) setClock(by string) (undo func()) {
	d, err := time.ParseDuration(by)
	require.NoError(r.t, err)
	began := time.Now() // of the clock that is not set, too
	set := func(to time.Time) {
		tv := syscall.NsecToTimeval(to.UnixNano())
		require.NoError(r.t, syscall.Settimeofday(&tv))
	}
	set(began.Add(d))
	return func() { set(began.Add(time.Since(began))) }
}

// fill takes the room from the target.
func (r *round) fill() (undo func()) {
	if d, ok := r.work.(*chaosDevice); ok {
		filler := filepath.Join(d.dir, "filler")
		_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=64k").Run() // until there is no room
		return func() { require.NoError(r.t, os.Remove(filler)) }
	}
	parent := r.datasets().parent
	used, err := strconv.ParseInt(strings.TrimSpace(zfsCmd(r.t, "get", "-Hp", "-o", "value", "used", parent)), 10, 64)
	require.NoError(r.t, err)
	out, err := exec.Command("zfs", "set", fmt.Sprintf("quota=%d", used+256<<10), parent).CombinedOutput()
	if err != nil { // it grew by more meanwhile
		r.logf("%s", out)
	}
	return func() { zfsCmd(r.t, "set", "quota=none", parent) }
}

// breakDisk has a disk fail, or lie, for a while. A pool that is suspended by it
// goes on afterwards, as an administrator would have it; it may find only then that
// its disk failed.
func (r *round) breakDisk(p *process, h hit) (undo func()) {
	d := r.disk
	table := d.failing()
	if h.arg == "drops" {
		table = d.lying()
	}
	d.become(table)
	time.Sleep(h.lasts)
	d.become(d.sound())
	if r.c.is("dev", "delta") {
		return func() {}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			state, _ := os.ReadFile("/proc/spl/kstat/zfs/" + faultPool + "/state") // zpool list may wait for the pool
			if strings.TrimSpace(string(state)) != "ONLINE" {
				_ = exec.Command("zpool", "clear", faultPool).Run() // or at the next turn
			}
			if !sleepUnless(p, 300*time.Millisecond) {
				return
			}
		}
	}()
	return func() {
		<-over
		run(r.t, "zpool", "clear", faultPool)
	}
}
