package netcat

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/zfs"
)

// dialer is what a script of a stream needs to know.
type dialer struct {
	nc     []string // nc's command line, see dialArgs
	secret string   // hex
	buffer int64    // bytes of mbuffer's memory; 0 = there is no mbuffer
	// silence is how long zxfer may not be heard, in whole seconds.
	silence time.Duration
}

// The scripts are for any POSIX shell. Their standard input brings zxfer's
// beats: when it ends, or brings none for a while, nc is ended, and by that
// everything else. timeout is of coreutils; where it is missing, the end of the
// input alone counts.
//
// The secret is in the script's text and in nc's input, never in an argument:
// echo is built in.

// watched runs nc on the standard input and output that the script has there,
// while zxfer is heard on descriptor 3. Where a shell is not interactive, what
// it starts with & gets no input but by a copy made before; where nc was ended,
// some say "Terminated" when they wait for it.
//
// %[1]s is nc's command line, with where its output goes; %[2]d seconds.
const watched = `{ exec 5<&0
t=; command -v timeout >/dev/null && t="timeout %[2]d"
%[1]s <&5 3<&- 4>&- 5<&- & n=$!
exec 5<&-
{ while $t sh -c "read -r beat" <&3; do :; done; kill $n; } >/dev/null 2>&1 4>&- & w=$!
wait $n 2>/dev/null; r=$?
kill $w 2>/dev/null
exit $r; }`

func (d dialer) watched(output string) string {
	return fmt.Sprintf(watched, zfs.CommandLine(d.nc)+output, int(d.silence.Seconds()))
}

// mbuffer is a stage of a pipeline, with the "|" in front of it, or "".
func (d dialer) mbuffer() string {
	if d.buffer <= 0 {
		return ""
	}
	return " | mbuffer -q -m " + strconv.FormatInt(max(1, d.buffer>>10), 10) + "k 3<&- 4>&-"
}

// receive is a script that dials and lets a command read what comes. Its exit
// status is the command's, which ends by the end of its input alone.
func (d dialer) receive(argv []string) string {
	return strings.Join([]string{
		"exec 3<&0 4>/dev/null",
		"echo " + d.secret + " | " + d.watched("") + d.mbuffer() + " | " + zfs.CommandLine(argv) + " 3<&- 4>&-",
	}, "\n")
}

// sentWord begins the line that tells the exit status of the command that sent.
const sentWord = "zxfer-sent "

// send is a script that dials and sends what a command writes. It prints the
// command's exit status; its own is nc's.
func (d dialer) send(argv []string) string {
	return strings.Join([]string{
		"exec 3<&0 4>&1",
		"{ echo " + d.secret,
		"{ " + zfs.CommandLine(argv) + " </dev/null 3<&- 4>&-; echo " + zfs.CommandLine([]string{sentWord}) + "$? >&4; }" + d.mbuffer(),
		"} | " + d.watched(" >/dev/null"),
	}, "\n")
}

// sentStatus reads what a send script printed; ok is false where it did not
// come to that.
func sentStatus(out []byte) (status int, ok bool) {
	for line := range strings.Lines(string(out)) {
		if text, found := strings.CutPrefix(line, sentWord); found {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			return n, err == nil
		}
	}
	return 0, false
}
