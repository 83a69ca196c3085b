package probe

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/sysinfo"
)

// listenWait limits the wait for nc to listen.
const listenWait = 3 * time.Second

// listenArgs returns the arguments that make nc listen on a loopback port.
func listenArgs(dialect string, port int) []string {
	p := strconv.Itoa(port)
	switch dialect {
	case sysinfo.OpenBSD, sysinfo.Ncat:
		return []string{"-l", "127.0.0.1", p}
	}
	return []string{"-l", "-p", p, "-s", "127.0.0.1"}
}

// netcat measures the output of a program through the host's nc. Both ends run on
// this host. Administrators use such a test to learn the speed of nc.
func netcat(ctx context.Context, d time.Duration, producer ...string) (t tally, err error) {
	nc, source := find("nc"), find(producer[0])
	if nc == "" || source == "" {
		return t, skip("nc or %s is not installed", producer[0])
	}
	help, _ := output(ctx, []string{"nc", "-h"}) // its exit status differs by dialect
	dialect := sysinfo.Dialect(help)
	t.note = "nc is " + dialect
	port, err := freePort()
	if err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, d+listenWait+5*time.Second)
	defer cancel()

	listener := command(ctx, nc, listenArgs(dialect, port)...)
	out, err := listener.StdoutPipe()
	if err != nil {
		return t, err
	}
	// nc may exit when its standard input ends.
	idle, err := listener.StdinPipe()
	if err != nil {
		return t, err
	}
	defer idle.Close()
	if err := listener.Start(); err != nil {
		return t, err
	}
	defer stop(listener, cancel)
	if !waitListening(ctx, port) {
		return t, skip("nc (%s) does not listen with %s", dialect, strings.Join(listenArgs(dialect, port), " "))
	}
	read, write, err := os.Pipe()
	if err != nil {
		return t, err
	}
	pump := command(ctx, source, producer[1:]...)
	pump.Stdout = write
	dial := command(ctx, nc, "127.0.0.1", strconv.Itoa(port))
	dial.Stdin = read
	err = pump.Start()
	if err == nil {
		defer stop(pump, cancel)
		if err = dial.Start(); err == nil {
			defer stop(dial, cancel)
		}
	}
	_, _ = read.Close(), write.Close() // the programs have inherited them
	if err != nil {
		return t, err
	}
	timer := time.AfterFunc(d, cancel)
	defer timer.Stop()
	start := time.Now()
	n, _ := io.Copy(io.Discard, out) // ends when nc is killed
	t.bytes, t.seconds = uint64(n), time.Since(start).Seconds()
	if n == 0 {
		return t, skip("nothing came through nc (%s)", dialect)
	}
	return t, nil
}

// stop kills a program and waits for it.
func stop(cmd *exec.Cmd, cancel context.CancelFunc) {
	cancel()
	_ = cmd.Wait() // it was killed
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// waitListening waits until a port of this host listens. It does not connect,
// because nc accepts only one connection.
func waitListening(ctx context.Context, port int) bool {
	want := fmt.Sprintf(":%04X 00000000:0000 0A", port) // state 0A is TCP_LISTEN
	for deadline := time.Now().Add(listenWait); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		raw, err := os.ReadFile("/proc/self/net/tcp")
		if err == nil && strings.Contains(string(raw), want) {
			return true
		}
	}
	return false
}
