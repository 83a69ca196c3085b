package rsh

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// exitRefused is how the remote script ends when the host cannot take zxfer.
const exitRefused = 93

// Lines that come from the other host, behind whatever its login shell prints.
const (
	agentWord = "zxfer-agent " // an agent's hello
	relayWord = "zxfer-relay"  // a relay's
	needWord  = "zxfer-need "  // the script wants the binary: "zxfer-need SYSTEM MACHINE"
)

// maxNoise bounds what a login shell may print before those.
const maxNoise = 64 << 10

// script finds this very zxfer on the other host, or asks for it, and becomes
// its agent. It is for any POSIX shell, and on one line without single quotes
// and exclamation marks: the login shell that reads it first, inside single
// quotes, may be any.
//
// $1 is the wanted build, $2 the size of its binary, $3 a further argument of
// the agent or "". The binary goes to a temporary directory and is moved once
// it is whole and runs; what was cut off is removed. Of older builds the newest
// four stay.
const script = `c="${XDG_CACHE_HOME:-$HOME/.cache}/zxfer"; d="$c/$1"; ` +
	`if [ -x "$d/zxfer" ]; then exec "$d/zxfer" agent ${3:+"$3"}; fi; ` +
	`z="$(command -v zxfer)"; if [ -n "$z" ] && [ "$("$z" agent --id 2>/dev/null)" = "$1" ]; then exec "$z" agent ${3:+"$3"}; fi; ` +
	`echo "zxfer-need $(uname -s) $(uname -m)"; ` +
	`read -r answer; [ "$answer" = send ] || exit 0; umask 077; ` +
	`t="$c/.part.$$"; trap "rm -rf \"$t\"" EXIT; trap "exit 1" HUP INT TERM; ` +
	`mkdir -p "$t" || { echo "cannot make the directory $t" >&2; exit 93; }; ` +
	`head -c "$2" > "$t/zxfer" || { echo "cannot write $t/zxfer" >&2; exit 93; }; ` +
	`[ "$(wc -c < "$t/zxfer")" -eq "$2" ] || { echo "the copy of zxfer was cut off" >&2; exit 1; }; chmod 700 "$t/zxfer"; ` +
	`[ "$("$t/zxfer" agent --id)" = "$1" ] || { echo "cannot run $t/zxfer: is it on a file system mounted noexec?" >&2; exit 93; }; ` +
	`mkdir -p "$d" && mv "$t/zxfer" "$d/zxfer" || { echo "cannot write $d/zxfer" >&2; exit 93; }; rmdir "$t"; trap - EXIT HUP INT TERM; ` +
	`cd "$c" && ls -t | tail -n +6 | while read -r old; do rm -rf "./$old"; done; cd; ` +
	`exec "$d/zxfer" agent ${3:+"$3"}`

// Self is the running binary.
type Self struct {
	ID   string // SHA-256 of the file, in hex
	Size int64
}

// readSelf is done once: the file may be replaced while it runs, and what runs
// is what was opened first.
var readSelf = sync.OnceValues(func() (Self, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return Self{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return Self{ID: hex.EncodeToString(h.Sum(nil)), Size: n}, err
})

// ThisBinary identifies the running zxfer.
func ThisBinary() (Self, error) { return readSelf() }

// Conn is the way to a program on another host: its standard output and
// input. Close returns how the remote shell failed, if it did.
type Conn struct {
	*pipe
	in *bufio.Reader
}

func (c *Conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Agent starts the agent on a host. Where the host lacks this very zxfer, it
// is copied there first, if Bootstrap allows. A host whose ssh account always
// starts an agent (a forced command) works too.
//
// Refusals (fault.Refused): no Bootstrap, another system or architecture, a
// cache directory that takes no executable file.
func Agent(ctx context.Context, o Options) (*Conn, error) { return connect(ctx, o, "") }

// Relay connects to a loopback address of a host, "127.0.0.1:PORT", through
// the remote shell. The host must have zxfer: an agent runs there.
func Relay(ctx context.Context, o Options, address string) (*Conn, error) {
	o.Bootstrap = false
	return connect(ctx, o, "--relay="+address)
}

func connect(ctx context.Context, o Options, argument string) (*Conn, error) {
	self, err := ThisBinary()
	if err != nil {
		return nil, fmt.Errorf("read this zxfer: %w", err)
	}
	p, err := o.start("exec sh -c '" + script + "' zxfer " + self.ID + " " + strconv.FormatInt(self.Size, 10) + " " + shellquote.Join(argument))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.out.Close() })
	defer stop()
	c := &Conn{pipe: p, in: bufio.NewReaderSize(p, 64<<10)}
	if err := c.arrive(&o, argument != "", &self); err != nil {
		why := p.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", o.Host, ctx.Err())
		}
		if why != nil && !errors.As(err, new(*fault.Error)) {
			err = why
		}
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	return c, nil
}

// arrive reads up to the line that says that the program is there.
func (c *Conn) arrive(o *Options, relay bool, self *Self) error {
	for read := 0; read < maxNoise; {
		peek, err := c.in.Peek(len(agentWord))
		if string(peek) == agentWord {
			return nil // the line is the agent's client's to read
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		line, err := c.in.ReadString('\n')
		read += len(line)
		line = strings.TrimSpace(line)
		switch {
		case relay && line == relayWord:
			return nil
		case strings.HasPrefix(line, needWord):
			if err := c.bootstrap(o, strings.Fields(line[len(needWord):]), self); err != nil {
				return err
			}
		case line != "":
			o.Log(o.Host + ": " + line)
		}
		if err != nil {
			return errors.New("no agent answered")
		}
	}
	return fmt.Errorf("no agent answered in the first %d bytes of its output", maxNoise)
}

// machines are uname's words for what this binary may run on.
func machines() []string {
	switch runtime.GOARCH {
	case "amd64":
		return []string{"x86_64", "amd64"}
	case "arm64":
		return []string{"aarch64", "arm64"}
	case "386":
		return []string{"i386", "i486", "i586", "i686"}
	case "arm":
		return []string{"armv6l", "armv7l", "armv8l"}
	}
	return []string{runtime.GOARCH}
}

// bootstrap copies this binary to the other host.
func (c *Conn) bootstrap(o *Options, uname []string, self *Self) error {
	if len(uname) != 2 {
		return fmt.Errorf("its uname answered %q", uname)
	}
	fits := false
	for _, m := range machines() {
		fits = fits || uname[1] == m
	}
	switch {
	case !o.Bootstrap:
		return fault.Refusef("install this zxfer there, or leave --no-bootstrap out: it is then copied to ~/.cache/zxfer",
			"zxfer is not there, or is another build, and --no-bootstrap forbids to copy this one")
	case uname[0] != "Linux" || runtime.GOOS != "linux":
		return fault.Refusef("zxfer runs on Linux only", "its system is %s, this zxfer is for %s", uname[0], runtime.GOOS)
	case !fits:
		return fault.Refusef("build zxfer for that machine and install it there: GOARCH=… go build ./cmd/zxfer",
			"its machine is %s, this zxfer is for %s", uname[1], runtime.GOARCH)
	}
	o.Log(fmt.Sprintf("%s: copying zxfer there (%d bytes)", o.Host, self.Size))
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.WriteString(c.pipe, "send\n"); err != nil {
		return err
	}
	_, err = io.Copy(c.pipe, f)
	return err
}
