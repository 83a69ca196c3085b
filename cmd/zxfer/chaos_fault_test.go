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

	"zxfer/pkg/testenv"
)

// faultPool is the name of the pool on a disk that can fail.
const faultPool = "zxchaos"

// isProcess returns a function that recognizes a process of a transfer by its command line.
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

// processesOf returns the matching processes on both hosts.
func processesOf(t *testing.T, name string) []int {
	t.Helper()
	pids := pidsOn(t, betaPool, isProcess(name))
	if name != "other host" {
		pids = append(pids, pidsOn(t, alphaPool, isProcess(name))...)
	}
	return pids
}

// prepare sets up a fault that must exist before the command starts. It returns the command's
// environment and a function that undoes the fault.
func (r *round) prepare(h chaosFault) (env []string, undo func()) {
	switch h.kind {
	case "netem":
		r.injected = true
		run(r.t, append([]string{labScript(), "net"}, strings.Fields(h.arg)...)...)
		return nil, func() { run(r.t, labScript(), "mend") }
	case "version":
		r.injected = true
		return []string{"ZXFER_RSH=" + r.otherVersion(h.arg)}, func() {}
	}
	return nil, func() {}
}

// otherVersion returns a remote shell that starts a different zxfer build, or reports a machine on which
// zxfer cannot run.
func (r *round) otherVersion(which string) string {
	ssh := "ssh -F " + labDir + "/ssh_config"
	other := os.Getenv("ZXFER_CHAOS_OTHER")
	if other == "" {
		other = alphaBin // the program that a forced command starts
	}
	script := map[string]string{
		"protocol": fmt.Sprintf("exec %s \"$1\" %s agent | sed -u 's/^zxfer-agent [0-9]* /zxfer-agent 99 /'", ssh, alphaBin),
		"machine":  "case $2 in *zxfer-need*) printf '\\nzxfer-need Linux riscv64 - -\\n'; exec cat >/dev/null;; esac; exec " + ssh + ` "$@"`,
		"other":    fmt.Sprintf("exec %s \"$1\" %s agent", ssh, other),
	}[which]
	file := filepath.Join(r.t.TempDir(), "rsh")
	testenv.WriteProgram(r.t, file, "#!/bin/sh\n"+script+"\n")
	return file
}

// inject causes a fault while p runs, and waits for its end. The returned function undoes
// faults that last until the attempt ends.
func (r *round) inject(p *process, h chaosFault, argv []string) (undo func()) {
	if h.duringTransfer {
		r.waitForTransfer(p)
	}
	if !sleepUnless(p, h.delay) {
		r.logf("the command ended before the fault")
		return func() {}
	}
	r.logf("%s %s", h.kind, h.arg)
	r.injected = h.kind != "none"
	switch h.kind {
	case "kill":
		r.injected = r.signal(h.arg, syscall.SIGKILL)
	case "stop":
		r.injected = r.signal(h.arg, syscall.SIGSTOP)
		time.Sleep(h.duration)
		r.signal(h.arg, syscall.SIGCONT)
	case "signal":
		_ = p.cmd.Process.Signal(map[string]os.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP}[h.arg])
	case "cut":
		run(r.t, labScript(), "cut")
		time.Sleep(h.duration)
		run(r.t, labScript(), "mend")
	case "reset":
		resetConnections(r.t, p)
	case "clock":
		return r.setClock(h.arg)
	case "rival":
		o := start(r.t, argv...).wait(r.t)
		r.logf("rival: %s", o)
	case "full":
		return r.fill()
	case "disk":
		return r.breakDisk(p, h)
	}
	return func() {}
}

// sleepUnless sleeps for d. It returns false if the process ends first.
func sleepUnless(p *process, d time.Duration) bool {
	select {
	case <-p.done:
		return false
	case <-time.After(d):
		return true
	}
}

// waitForTransfer waits until data moves, the process ends, or 20 seconds pass.
func (r *round) waitForTransfer(p *process) {
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); {
		if !sleepUnless(p, 60*time.Millisecond) {
			return
		}
		if r.c.isWork("dev", "delta") {
			if strings.Contains(p.stderr.String(), `"event":"started"`) {
				return
			}
		} else if len(processesOf(r.t, "zfs receive")) > 0 {
			return
		}
	}
}

// signal sends a signal to the processes of a transfer, and reports whether there are any.
func (r *round) signal(name string, s syscall.Signal) bool {
	pids := processesOf(r.t, name)
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // it may have already ended
	}
	r.logf("%v to %d processes", s, len(pids))
	return len(pids) > 0
}

// setClock moves the clock, which both hosts share.
func (r *round) setClock(by string) (undo func()) {
	d, err := time.ParseDuration(by)
	require.NoError(r.t, err)
	began := time.Now() // also contains the monotonic clock
	set := func(to time.Time) {
		tv := syscall.NsecToTimeval(to.UnixNano())
		require.NoError(r.t, syscall.Settimeofday(&tv))
	}
	set(began.Add(d))
	return func() { set(began.Add(time.Since(began))) }
}

// fill uses up the free space of the target.
func (r *round) fill() (undo func()) {
	if d, ok := r.work.(*chaosDevice); ok {
		filler := filepath.Join(d.dir, "filler")
		_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=64k").Run() // until the filesystem is full
		return func() { require.NoError(r.t, os.Remove(filler)) }
	}
	parent := r.datasets().parent
	used, err := strconv.ParseInt(strings.TrimSpace(zfsCmd(r.t, "get", "-Hp", "-o", "value", "used", parent)), 10, 64)
	require.NoError(r.t, err)
	out, err := exec.Command("zfs", "set", fmt.Sprintf("quota=%d", used+256<<10), parent).CombinedOutput()
	if err != nil { // usage has grown beyond the quota since then
		r.logf("%s", out)
	}
	return func() { zfsCmd(r.t, "set", "quota=none", parent) }
}

// breakDisk makes a disk fail or drop writes for a while. If this suspends the pool, breakDisk
// clears the pool's errors as an administrator would. It repeats this because the pool can
// notice the failure late.
func (r *round) breakDisk(p *process, h chaosFault) (undo func()) {
	d := r.disk
	table := d.errorTable()
	if h.arg == "drops" {
		table = d.dropWritesTable()
	}
	d.setTable(table)
	time.Sleep(h.duration)
	d.setTable(d.healthyTable())
	if r.c.isWork("dev", "delta") {
		return func() {}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			state, _ := os.ReadFile("/proc/spl/kstat/zfs/" + faultPool + "/state") // zpool list can block on a suspended pool
			if strings.TrimSpace(string(state)) != "ONLINE" {
				_ = exec.Command("zpool", "clear", faultPool).Run() // if it fails, the next iteration retries
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
