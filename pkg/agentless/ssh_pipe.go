package agentless

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
)

// pipe is a command whose data passes through the remote shell.
type pipe struct {
	*sshexec.Pipe
	host  *Host
	sends bool
}

// openPipe starts a command whose data passes through the remote shell. The end of ctx does not end the
// command: Abort and Close let it end gracefully.
func (h *Host) openPipe(ctx context.Context, path path, name string, argv []string, sends bool) (*command, error) {
	p, err := &sshexec.Pipe{}, checkWords(argv)
	switch {
	case h.shell:
		if err = h.endStale(ctx); err != nil {
			return nil, err
		}
		p, err = sshexec.OpenPipe(ctx, h.master.Options, h.pipeScript(path, argv, sends))
	case err == nil:
		p, err = sshexec.OpenCommand(ctx, h.master.Options, zfs.CommandLine(argv))
	}
	if err != nil {
		return nil, err
	}
	if !sends {
		p.Discard()
	}
	c := pipe{p, h, sends}
	return &command{host: h, name: name, conn: c, process: c}, nil
}

// pipeScript returns the script of a command. It prints the exit status of a sender on standard error.
// Its own exit status is that of a receiver, whose process ID it prints there. The command does not
// replace the shell, because ssh does not report a signal that ends the command.
func (h *Host) pipeScript(path path, argv []string, sends bool) string {
	line, buffered := zfs.CommandLine(argv), h.tools.mbuffer && path.buffer > 0
	switch {
	case sends:
		line = "{ " + line + " </dev/null; echo " + zfs.CommandLine([]string{sentPrefix}) + "$? >&2; }"
		if buffered {
			line += " | " + mbuffer(path.buffer)
		}
		return line + "\nexit $?"
	case buffered:
		line = mbuffer(path.buffer) + " | " + line
	}
	// A background process has no input, except through a copied descriptor.
	return "exec 3<&0\n{ " + line + "; } <&3 3<&- & p=$!\nexec 3<&-\necho " + zfs.CommandLine([]string{pidPrefix}) + "$p >&2\nwait $p\nexit $?"
}

// pidPrefix starts the line on which a receiver's script prints its process ID.
const pidPrefix = "zxfer-pid "

// Receives has the receives whose end is unknown, by host name. If the network failed, a host may keep
// them running for hours, and its dataset is busy. It is safe for concurrent use.
type Receives struct {
	mu   sync.Mutex
	pids map[string][]string
}

func (r *Receives) add(host, pid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pids == nil {
		r.pids = map[string][]string{}
	}
	r.pids[host] = append(r.pids[host], pid)
}

func (r *Receives) take(host string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids := r.pids[host]
	delete(r.pids, host)
	return pids
}

// endStale ends the receives of earlier connections, and waits until they have saved their state.
func (h *Host) endStale(ctx context.Context) error {
	pids := h.receives.take(h.name)
	if len(pids) == 0 {
		return nil
	}
	_, err := h.runScript(ctx, "for p in "+strings.Join(pids, " ")+`; do
case "$(ps -o args= -p $p)" in *"zfs receive "*) kill $p; n=0; while kill -0 $p 2>/dev/null && [ $n -lt 60 ]; do sleep 1; n=$((n+1)); done;; esac
done`)
	return err
}

// Close ends a sender's data. It ends the input of a receiver, which then saves its state.
func (p pipe) Close() error {
	if p.sends {
		return p.Pipe.Close()
	}
	return p.CloseWrite()
}

// noteLost remembers a receive whose end is unknown.
func (p pipe) noteLost() {
	for line := range strings.Lines(p.Stderr()) {
		pid, found := strings.CutPrefix(strings.TrimSpace(line), pidPrefix)
		if _, err := strconv.ParseUint(pid, 10, 31); found && err == nil {
			p.host.receives.add(p.host.name, pid)
			return
		}
	}
}

// SetDeadline does nothing: a pipe ends with its command.
func (pipe) SetDeadline(time.Time) error { return nil }

func (p pipe) Exit() (exit, error) {
	stderr, status, err := p.Result()
	if err != nil && !p.sends {
		p.noteLost()
	}
	if !p.host.shell {
		return exit{stderr: stderr, status: status}, err
	}
	e := exit{status: status}
	if p.sends {
		e = exit{status: sentStatus(stderr), tool: "the pipeline of zfs send", toolStatus: status}
	}
	var lines []string
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, sentPrefix) && !strings.HasPrefix(line, pidPrefix) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	e.stderr = strings.Join(lines, "\n")
	return e, err
}
