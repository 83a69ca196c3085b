// Package sshexec runs programs on other hosts through a remote shell: ssh, or a command that the
// user names.
//
// Nouns:
//   - Options: how to reach a host.
//   - Conn: a connection to zxfer's agent on a host. The bootstrap script starts the agent.
//   - Build: a zxfer binary. If the host lacks it, the bootstrap script stores it in the host's cache
//     directory (CacheDir).
//   - Script: a shell script that runs on a host without zxfer.
//   - Master: an ssh connection that several scripts share.
//   - Relay: a local listener whose connections the remote shell forwards to a host's loopback
//     address.
//
// The package does not speak the agent's protocol.
package sshexec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
	"zxfer/pkg/size"
)

// maxBanner limits, in bytes, the output of a login shell before the agent answers, and the length
// of a line.
const maxBanner = 64 << 10

// Conn is a connection to a program on another host. It reads the program's standard output and
// writes its standard input. Close returns the failure of the remote shell, if any.
type Conn struct {
	*process
	in *bufio.Reader
}

func (c *Conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Agent starts the agent on a host. If the host lacks the same build or release and Bootstrap is
// set, Agent first copies zxfer there, for another architecture from a file. It also works if the
// ssh account always starts an agent (a forced command).
//
// It returns a *NoAgentError if the host permits a login but cannot run zxfer: its system or
// architecture is not supported, no cache directory can hold an executable, Bootstrap is not set, or
// the account runs no shell.
func Agent(ctx context.Context, o Options) (*Conn, error) { return connect(ctx, o, "") }

// NoAgentError means that a host permits a login but cannot run zxfer.
type NoAgentError struct {
	Host   string
	Reason error
}

func (e *NoAgentError) Error() string { return e.Host + ": " + e.Reason.Error() }

func (e *NoAgentError) Unwrap() error { return e.Reason }

// connect starts the agent with an additional argument, "" for none. If it fails, it ends
// everything that it started.
func connect(ctx context.Context, o Options, argument string) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	own, err := o.self()
	if err != nil {
		return nil, fmt.Errorf("read the local zxfer binary: %w", err)
	}
	p, err := o.start(replaceShell, command(own.id, o.Release, argument), &tail{log: o.log, maxLines: tailLines, hold: true})
	if err != nil {
		return nil, err
	}
	a := &handshake{Conn: &Conn{process: p, in: bufio.NewReaderSize(p.out, maxBanner)}, o: &o, wanted: own, relay: argument != "", endActivity: func() {}}
	defer func() { a.endActivity() }()
	var late atomic.Bool
	a.timer = time.AfterFunc(o.connectTimeout(), func() { late.Store(true); p.interrupt() })
	defer a.timer.Stop()
	stop := context.AfterFunc(ctx, p.interrupt)
	err = a.wait()
	if stop() && err == nil && !late.Load() {
		p.stderr.release()
		a.logBanner()
		return a.Conn, nil
	}
	why := p.shutdown(quitTimeout)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case late.Load():
		err = fmt.Errorf("no agent answered within %s", o.connectTimeout())
	case errors.As(err, new(*fault.Error)):
	case why != nil && a.banner != "" && p.stderr.String() == "":
		// For example, a login shell that permits no login prints that on standard output.
		err = fmt.Errorf("%w, but its shell: %s", why, a.banner)
	case why != nil:
		err = why
	case a.banner != "":
		err = fmt.Errorf("%w; its shell said: %s", err, a.banner)
	}
	if ctx.Err() == nil && !strings.Contains(err.Error(), p.stderr.String()) {
		p.stderr.release()
	}
	if ctx.Err() == nil && !strings.Contains(err.Error(), a.banner) {
		a.logBanner()
	}
	status := p.cmd.ProcessState.ExitCode() // 255: a remote shell could not connect
	loggedIn := status >= 0 && status != 255 && !p.forced.Load()
	if argument == "" && ctx.Err() == nil && !late.Load() && (loggedIn || fault.ClassOf(err) == fault.Refused) {
		return nil, &NoAgentError{o.Host, err}
	}
	return nil, fmt.Errorf("%s: %w", o.Host, err)
}

// handshake is the exchange with the bootstrap script until the program on the other host runs.
type handshake struct {
	*Conn
	o       *Options
	wanted  *build // the build that the script looks for
	foreign bool   // wanted is not the running one
	relay   bool
	timer   *time.Timer
	banner  string // last line that the login shell printed

	copied      bool         // wanted was sent
	sent        atomic.Int64 // bytes
	endActivity func()       // ends the progress display of the copy
}

// logBanner logs the last line of the login shell. An error of the connection may contain it instead.
func (a *handshake) logBanner() {
	if a.banner != "" {
		a.o.log(a.banner)
	}
}

// wait reads until the program reports that it runs.
func (a *handshake) wait() error {
	for read := 0; read < maxBanner; {
		peek, err := a.in.Peek(len(agentWord))
		if string(peek) == agentWord {
			if a.relay {
				return fault.Refusef("choose another wire, or let the account start a shell",
					"the account always starts an agent, which cannot relay connections")
			}
			return nil // the agent's client reads this line
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("no agent answered: %w", err)
		}
		raw, err := a.in.ReadSlice('\n')
		read += len(raw)
		line := strings.TrimSpace(string(raw))
		switch {
		case a.relay && line == relayWord:
			return nil
		case strings.HasPrefix(line, needWord):
			if err := a.handleNeed(strings.Fields(line[len(needWord):])); err != nil {
				return err
			}
		case line != "":
			a.logBanner()
			a.banner = line[:min(len(line), maxTailLine)]
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return errors.New("no agent answered")
		}
	}
	return fault.Failf(QuietLogin, "no agent answered in the first %d bytes of its output", maxBanner)
}

// handleNeed answers a host that lacks the wanted build. words are the host's system, machine and
// coding, and the installed version, if any.
func (a *handshake) handleNeed(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("its uname printed %q", words)
	}
	if a.copied {
		return errors.New("it requested zxfer a second time")
	}
	if !a.foreign {
		fits, err := a.o.binaryFor(words[0], words[1])
		switch {
		case err != nil && a.o.Bootstrap && !a.relay:
			return err
		case err == nil && fits != nil:
			a.wanted, a.foreign = fits, true
			_, err = io.WriteString(a, tryWord+" "+fits.id+"\n")
			return err
		}
	}
	if a.relay {
		return errors.New("zxfer was deleted there, or replaced by another build")
	}
	if !a.o.Bootstrap {
		message := "zxfer is missing there, or is another build,"
		if len(words) > 3 && a.o.Release != "" && isVersion(words[3]) {
			message = fmt.Sprintf("zxfer there is %s, the local one is %s,", words[3], a.o.Release)
		}
		return fault.Refusef("install the same zxfer there, or omit {{no-bootstrap}} to copy it to ~/.cache/zxfer",
			"%s and {{no-bootstrap}} forbids copying this one", message)
	}
	return a.sendBuild(words[2])
}

// isVersion reports whether word has the form VERSION/PROTOCOL. The word is untrusted.
func isVersion(word string) bool {
	version, protocol, ok := strings.Cut(word, "/")
	return ok && len(word) < 64 && strings.Trim(version, "0123456789abcdefghijklmnopqrstuvwxyz.+-") == "" && strings.Trim(protocol, "0123456789") == ""
}

// sendBuild sends the wanted build in a coding that the host supports.
func (a *handshake) sendBuild(coding string) error {
	text, err := a.wanted.encode(coding)
	if err != nil {
		return err
	}
	a.copied = true
	total := int64(len(text))
	a.o.log(fmt.Sprintf("copying zxfer there (%s)", size.Text(uint64(total))))
	if _, err := fmt.Fprintf(a, "%s %d %s\n", sendWord, total, coding); err != nil {
		return err
	}
	a.sent.Store(0)
	if a.o.Activity != nil {
		a.endActivity = a.o.Activity(func() string {
			return fmt.Sprintf("copying zxfer to %s, %d %% of %s", a.o.Host, 100*a.sent.Load()/total, size.Text(uint64(total)))
		})
	}
	// Write resets the timeout for each piece.
	_, err = io.Copy(a, io.LimitReader(bytes.NewReader(text), total))
	return err
}

// Write resets the timeout, so that a slow network does not end the copy.
func (a *handshake) Write(b []byte) (int, error) {
	n, err := a.process.Write(b)
	a.sent.Add(int64(n))
	a.timer.Reset(a.o.connectTimeout())
	return n, err
}

// exitRefused is the script's exit status if the host cannot store zxfer.
const exitRefused = 93

// Lines from the other host. They follow the output of the login shell. An empty line precedes
// each, because that output may end in the middle of a line.
const (
	agentWord = "zxfer-agent " // an agent started
	relayWord = "zxfer-relay"  // a relay started
	// The script did not find the wanted build: "zxfer-need SYSTEM MACHINE CODING VERSION". CODING
	// is "gzip" if the host has gzip. VERSION is the VERSION/PROTOCOL of the zxfer in its PATH, if
	// any.
	needWord = "zxfer-need "
)

// Replies to needWord.
const (
	tryWord  = "try"  // "try ID": look for this build, which fits the machine
	sendWord = "send" // "send N CODING": N bytes of the build follow
)

// cacheDirs sets "$@" to the directories that may hold the binary, and defines functions to enter
// and check them. The entry "home" stands for the account's home, which is looked up only if
// needed.
const cacheDirs = `u="$(id -u)"; ` +
	`set -- "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/zxfer}" "${HOME:+$HOME/.cache/zxfer}" home "${TMPDIR:-/tmp}/zxfer-$u"; ` +
	// The account's home directory, if HOME is not set or wrong.
	`home() { { getent passwd "$u" || cat /etc/passwd; } 2>/dev/null | ` +
	`while IFS=: read -r x x y x x h x; do if [ "$y" = "$u" ]; then echo "$h/.cache/zxfer"; break; fi; done; }; ` +
	// Enters a directory, but not through a link in its place.
	`enter() { cd -P "${1%/*}/" 2>/dev/null && p="$(pwd -P)" && cd -P "./${1##*/}" 2>/dev/null && [ "$(pwd -P)" = "${p%/}/${1##*/}" ]; }; ` +
	// Accepts no links, and only files that the account or root owns and nobody else can write.
	`ours() ( l="$(ls -ldn "$@" 2>/dev/null)" && echo "$l" | while read -r m x w x; do ` +
	`case "$m:$w" in [d-]????-??-*:"$u" | [d-]????-??-*:0) ;; *) exit 1 ;; esac; done ); `

// forEachDir starts a loop over the directories.
const forEachDir = `for c; do [ "$c" = home ] && c="$(home)"; case "$c" in /*) ;; *) continue ;; esac; `

// script finds the same zxfer on the other host, or requests it, and becomes its agent. The login
// shell reads it first, inside single quotes, and may be any shell. So the script is one line of
// POSIX shell without single quotes and exclamation marks.
//
// $1 is the wanted build, $2 its release as VERSION/PROTOCOL or "", and $3 an additional argument
// of the agent or "". The binary is in a directory that only the account and root can write. The
// script enters the directory before it checks it, so that it runs and writes the files that it
// checked. The hash detects files whose data was lost in a power failure. It takes a tenth of a
// second or more, so the result is stored until the next boot.
const script = `i="$1"; r="$2"; a="$3"; o="$(pwd)"; ` + cacheDirs +
	// The file is hashed once after each boot and after each change.
	`{ read -r b < /proc/sys/kernel/random/boot_id; } 2>/dev/null; ` +
	`mark() ( umask 077; rm -f "$i/whole"; echo "$b $(uname -m)" > "$i/whole" ) 2>/dev/null; ` +
	`whole() { k=; x=; [ -O "$i/whole" ] && [ "$i/whole" -nt "$i/zxfer" ] && { read -r k x < "$i/whole"; } 2>/dev/null; [ -n "$b" ] && [ "$k" = "$b" ] && return 0; ` +
	// Hosts with another architecture may share the home directory.
	`case "$x" in "" | "$(uname -m)") ;; *) return 1 ;; esac; ` +
	`if command -v sha256sum >/dev/null; then h="$(sha256sum < "$i/zxfer")"; else h="$("./$i/zxfer" agent --id)"; fi 2>/dev/null; [ "${h%% *}" = "$i" ] && { mark || true; }; }; ` +
	`look() { ` + forEachDir +
	`if enter "$c" && [ -f "$i/zxfer" ] && [ -x "$i/zxfer" ] && ours . "$i" "$i/zxfer" && whole; then exec "./$i/zxfer" agent ${a:+"$a"}; fi; done; cd "$o"; ` +
	// An installed zxfer is used if it has the same build or release.
	`v=; z="$(command -v zxfer)"; [ -n "$z" ] && v="$("$z" agent --id 2>/dev/null)"; ` +
	`case "$v" in "$i" | "$i "* | [0-9a-f]*" ${r:-$i}") exec "$z" agent ${a:+"$a"} ;; esac; ` +
	`g=-; [ "$(echo a | gzip 2>/dev/null | gzip -d 2>/dev/null)" = a ] && g=gzip; ` +
	`echo; echo "zxfer-need $(uname -s) $(uname -m) $g ${v##* }"; g=; read -r answer n g; }; ` +
	`look "$@"; [ "$answer" = try ] && { i="$n"; look "$@"; }; [ "$answer" = send ] || exit 0; ` +
	`m="$(umask)"; umask 077; f=; ` + forEachDir +
	`mkdir -p "${c%/*}" || continue; [ -e "$c" ] || [ -h "$c" ] || mkdir -m 700 "$c" || continue; ` +
	`if enter "$c" && [ -w . ] && ours .; then f=1; break; fi; ` +
	`echo "$c is not used: it is a link, or others may write it, or this account may not" >&2; done; ` +
	`[ "$f" ] || { echo "no directory takes zxfer" >&2; exit 93; }; ` +
	`[ "$c" = "${TMPDIR:-/tmp}/zxfer-$u" ] && echo "no home takes zxfer: it is kept in $c" >&2; ` +
	// Hosts that share the cache may use the same process number.
	`t="part.$(uname -n).$$"; trap "rm -rf \"./\$t\"" EXIT; trap "exit 1" HUP INT TERM; rm -rf "./$t"; ` +
	`mkdir -m 700 "./$t" || { echo "cannot make the directory $c/$t" >&2; exit 93; }; ` +
	`[ "$g" = gzip ] && g=.gz || g=; head -c "$n" > "./$t/zxfer$g" || { echo "cannot write $c/$t/zxfer$g" >&2; exit 93; }; ` +
	`[ "$(wc -c < "./$t/zxfer$g")" -eq "$n" ] || { echo "the copy of zxfer was cut off" >&2; exit 1; }; ` +
	`[ -z "$g" ] || gzip -d "./$t/zxfer.gz" || { echo "cannot write $c/$t/zxfer" >&2; exit 93; }; chmod 700 "./$t/zxfer"; ` +
	// The binary checks itself: its id is the hash of its file.
	`v="$("./$t/zxfer" agent --id)"; [ "${v%% *}" = "$i" ] || { echo "cannot run $c/$t/zxfer: is it on a file system mounted noexec?" >&2; exit 93; }; ` +
	`case "$r" in "" | "${v#* }") ;; *) echo "the zxfer for $(uname -m) is ${v#* }, and not $r" >&2; exit 93 ;; esac; ` +
	// Another process may install the same build at the same time, so a valid one is not removed.
	`mkdir -m 700 "$i" 2>/dev/null; { [ -d "$i" ] && ours "$i"; } || { rm -rf "./$i"; mkdir -m 700 "$i"; }; [ -f "$i/zxfer" ] || rm -rf "./$i/zxfer"; ` +
	`mv -f "./$t/zxfer" "$i/zxfer" || { echo "cannot write $c/$i/zxfer" >&2; exit 93; }; mark; rmdir "./$t"; trap - EXIT HUP INT TERM; umask "$m"; ` +
	// Other hosts may be copying builds at the same time, so only partial copies older than a day
	// are removed. The newest two older builds are kept. Builds for other architectures are not
	// counted, because the cache may be shared. Removing a running binary is safe.
	`{ find . -name "part.*" -prune -mtime +0 -exec rm -rf {} ";" 2>/dev/null; ` +
	`w="$(uname -m)"; y=0; ls -t | grep -x "[0-9a-f]*" | while read -r d; do x=; { read -r k x < "$d/whole"; } 2>/dev/null; ` +
	`case "$x" in "" | "$w") ;; *) continue ;; esac; y=$((y + 1)); [ "$y" -le 3 ] || [ "$d" = "$i" ] || rm -rf "./$d"; done; }; ` +
	`exec "./$i/zxfer" agent ${a:+"$a"}`

// command returns the command line for the login shell of the other host.
func command(id, release, argument string) string {
	return "exec sh -c '" + script + "' zxfer " + shellquote.Join(id, release, argument)
}
