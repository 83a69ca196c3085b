package agentless

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/sshexec"
	"zxfer/pkg/zfs"
)

// pipe is the connection of a command whose data passes through the remote shell.
type pipe struct {
	*sshexec.Pipe
	sends bool
}

// Close ends a sender's data. It ends the input of a receiver, which then saves its state.
func (p pipe) Close() error {
	if p.sends {
		return p.Pipe.Close()
	}
	return p.CloseWrite()
}

// SetDeadline does nothing: a pipe ends with its command.
func (pipe) SetDeadline(time.Time) error { return nil }

// openPipe starts a command whose data passes through the remote shell. The end of ctx does not end the
// command: Abort and Close let it end gracefully.
func (h *Host) openPipe(ctx context.Context, path path, name string, argv []string, sends bool) (*command, error) {
	var p *sshexec.Pipe
	var err error
	if h.shell {
		if err = h.endStale(ctx); err == nil {
			p, err = sshexec.OpenPipe(ctx, h.master.Options, h.pipeScript(path, argv, sends))
		}
	} else if err = checkWords(argv); err == nil {
		p, err = sshexec.OpenCommand(ctx, h.master.Options, zfs.CommandLine(argv))
	}
	if err != nil {
		return nil, err
	}
	if !sends {
		p.Discard()
	}
	return &command{host: h, name: name, sends: sends, tool: "the pipeline of zfs send",
		process: p, conn: pipe{p, sends}}, nil
}

// pipeScript returns the script of a command. Its exit status is that of a receiver, whose process ID it
// prints on standard error. The command does not replace the shell, because ssh does not report a signal
// that ends the command.
func (h *Host) pipeScript(path path, argv []string, sends bool) string {
	buffer := ""
	if h.tools.mbuffer && path.buffer > 0 {
		buffer = mbuffer(path.buffer)
	}
	switch {
	case sends && buffer != "":
		return sending(argv, "") + " | " + buffer + "\nexit $?"
	case sends:
		return sending(argv, "") + "\nexit $?"
	}
	// A background process has no input, except through a copied descriptor. $! is the last process of a
	// pipeline, but the shell around a group of commands.
	input := " <&3 3<&-"
	if buffer != "" {
		input = " 3<&-"
		buffer += " <&3 3<&- | "
	}
	return "exec 3<&0\n" + buffer + zfs.CommandLine(argv) + input + " & p=$!\n" +
		"exec 3<&-\necho " + word(pidPrefix) + "$p >&2\nwait $p\nexit $?"
}

// Prefixes of the lines that scripts print on standard error.
const (
	sentPrefix = "zxfer-sent " // the exit status of a sender
	pidPrefix  = "zxfer-pid "  // the process ID of a receiver
)

// sending returns a command in shell syntax, with redirections, that then prints its exit status.
func sending(argv []string, redirections string) string {
	return "{ " + zfs.CommandLine(argv) + " </dev/null" + redirections + "; echo " + word(sentPrefix) + "$? >&2; }"
}

// word returns a text as one word in shell syntax.
func word(text string) string { return zfs.CommandLine([]string{text}) }

// mbuffer returns the command line of a buffer of that many bytes.
func mbuffer(bytes int64) string {
	return "mbuffer -q -m " + strconv.FormatInt(max(1, bytes>>10), 10) + "k"
}

// parseStderr returns the standard error of a script without zxfer's lines, the exit status of a sender,
// and the process ID of a receiver. Without these lines they are -1 and "". Only the last status and
// the first process ID count, because the command may print such lines too.
func parseStderr(text string) (stderr string, sent int, pid string) {
	var lines []string
	sent = -1
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if status, found := strings.CutPrefix(line, sentPrefix); found {
			if n, err := strconv.ParseUint(status, 10, 8); err == nil {
				sent = int(n)
			}
		} else if id, found := strings.CutPrefix(line, pidPrefix); found {
			if _, err := strconv.ParseUint(id, 10, 31); err == nil && pid == "" {
				pid = id
			}
		} else {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n"), sent, pid
}

// Receives has the receives whose end is unknown, by host name. If the network failed, a host may keep
// them running for hours, and its dataset is busy. It is safe for concurrent use.
type Receives struct {
	mu     sync.Mutex
	byHost map[string][]receive // guarded by mu
}

// receive is a zfs receive on another host. The host may give its process number to another process.
type receive struct{ pid, target string }

func (r *Receives) add(host string, all ...receive) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byHost == nil {
		r.byHost = map[string][]receive{}
	}
	for _, one := range all {
		if !slices.Contains(r.byHost[host], one) {
			r.byHost[host] = append(r.byHost[host], one)
		}
	}
}

func (r *Receives) take(host string) []receive {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.byHost[host]
	delete(r.byHost, host)
	return all
}

// endStale ends the receives of earlier connections, and waits until they have saved their state. If the
// host is still unreachable, they remain for the next call.
func (h *Host) endStale(ctx context.Context) error {
	stale := h.receives.take(h.name)
	if len(stale) == 0 {
		return nil
	}
	script := `finish() { case "$(ps -o args= -p $1)" in *"zfs receive"*" $2")
kill $1; n=0; while kill -0 $1 2>/dev/null && [ $n -lt 60 ]; do sleep 1; n=$((n+1)); done;;
esac; }`
	for _, r := range stale {
		script += "\nfinish " + shellquote.Join(r.pid, r.target)
	}
	_, err := h.runScript(ctx, script)
	if err == nil {
		return nil
	}
	h.receives.add(h.name, stale...)
	return asLost(ctx, err)
}
