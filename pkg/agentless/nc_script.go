package agentless

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// dialer writes scripts in which the host's nc connects to zxfer.
type dialer struct {
	nc     []string // command line, see dialArgs
	secret string   // hex
	buffer int64    // mbuffer's memory in bytes; 0 = no mbuffer
	// beatTimeout is how long the script waits for zxfer's next beat, in whole seconds.
	beatTimeout time.Duration
}

// send returns a script that dials and sends a command's output. Its exit status is nc's.
func (d dialer) send(argv []string) string {
	return strings.Join([]string{
		"exec 3<&0",
		"{ echo " + d.secret,
		sending(argv, " 3<&-") + d.mbuffer(),
		"} | " + d.watched(" >/dev/null"),
	}, "\n")
}

// receive returns a script that dials and pipes the stream into a command. Its exit status is the
// command's. The command ends only at the end of its input.
func (d dialer) receive(argv []string) string {
	return strings.Join([]string{
		"exec 3<&0",
		"echo " + d.secret + " | " + d.watched("") + d.mbuffer() + " | " + zfs.CommandLine(argv) + " 3<&-",
	}, "\n")
}

// The scripts run in any POSIX shell. Their standard input carries zxfer's beats. If it ends, or
// pauses too long, the script kills nc, which ends all other processes. timeout belongs to
// coreutils. If it is missing, only the end of input counts.
//
// The secret appears in the script's text and in nc's input, never in an argument: echo is a
// shell builtin.

// watchedScript runs nc with the script's input and output at that place, while beats arrive on
// descriptor 3. In a shell that is not interactive, background processes get no input, except
// through a copied descriptor. Some shells print "Terminated" when they wait for a killed nc.
//
// %[1]s is nc's command line with its redirection; %[2]d is the timeout in seconds.
const watchedScript = `{ exec 5<&0
t=; command -v timeout >/dev/null && t="timeout %[2]d"
%[1]s <&5 3<&- 5<&- & n=$!
exec 5<&-
{ while $t sh -c "read -r beat" <&3; do :; done; kill $n; } >/dev/null 2>&1 & w=$!
wait $n 2>/dev/null; r=$?
kill $w 2>/dev/null
exit $r; }`

func (d dialer) watched(output string) string {
	return fmt.Sprintf(watchedScript, zfs.CommandLine(d.nc)+output, int(d.beatTimeout.Seconds()))
}

// mbuffer returns the pipeline stage with its leading "|", or "".
func (d dialer) mbuffer() string {
	if d.buffer <= 0 {
		return ""
	}
	return " | " + mbuffer(d.buffer) + " 3<&-"
}

// dialArgs returns the arguments with which an nc of the dialect connects. ok is false for an
// unknown dialect. Every nc ends when its peer closes. A sending nc must also close at the end of
// its input. A receiving one must not, because its input is only the secret.
//
// https://manpages.debian.org/trixie/netcat-openbsd/nc.1.en.html (-N)
// https://manpages.debian.org/trixie/netcat-traditional/nc.1.en.html (-q)
// https://nmap.org/book/ncat-man-misc-options.html (--send-only)
func dialArgs(dialect, host string, port int, sends bool) (args []string, ok bool) {
	switch dialect {
	case sysinfo.OpenBSD:
		args = []string{"-N"}
	case sysinfo.Traditional:
		args = []string{"-q", "0"}
	case sysinfo.Ncat:
		args = []string{"--send-only"}
	case sysinfo.BusyBox: // closes without an option
	case sysinfo.GNU:
		args = []string{"-c"}
	default:
		return nil, false
	}
	if !sends {
		args = nil
	}
	return append(args, host, strconv.Itoa(port)), true
}
