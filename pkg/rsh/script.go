package rsh

import (
	"strconv"

	"github.com/kballard/go-shellquote"
)

// exitRefused is how the remote script ends when the host cannot take zxfer.
const exitRefused = 93

// Lines that come from the other host, behind whatever its login shell prints.
// An empty line comes before each, as that may have left its last line open.
const (
	agentWord = "zxfer-agent " // an agent's hello
	relayWord = "zxfer-relay"  // a relay's
	needWord  = "zxfer-need "  // the script wants the binary: "zxfer-need SYSTEM MACHINE"
)

// sendWord is the answer to needWord, before the bytes of the binary.
const sendWord = "send"

// script finds this very zxfer on the other host, or asks for it, and becomes
// its agent. It is for any POSIX shell, and on one line without single quotes
// and exclamation marks: the login shell that reads it first, inside single
// quotes, may be any.
//
// $1 is the wanted build, $2 the size of its binary, $3 a further argument of
// the agent or "". The binary goes to a temporary directory and is moved once
// it is whole and runs; what was cut off is removed. A host that lost power soon
// afterwards may have the name without the bytes: then it is copied again. Of
// older builds the newest four stay: a running one can be removed, its file
// lives until it ends.
const script = `c="${XDG_CACHE_HOME:-$HOME/.cache}/zxfer"; d="$c/$1"; ` +
	`if [ -x "$d/zxfer" ] && [ "$(wc -c < "$d/zxfer")" -eq "$2" ]; then exec "$d/zxfer" agent ${3:+"$3"}; fi; ` +
	`z="$(command -v zxfer)"; if [ -n "$z" ] && [ "$("$z" agent --id 2>/dev/null)" = "$1" ]; then exec "$z" agent ${3:+"$3"}; fi; ` +
	`echo; echo "zxfer-need $(uname -s) $(uname -m)"; ` +
	`read -r answer; [ "$answer" = send ] || exit 0; u="$(umask)"; umask 077; ` +
	// The cache may be shared with other hosts, which count their processes alike.
	`t="$c/part.$(uname -n).$$"; trap "rm -rf \"$t\"" EXIT; trap "exit 1" HUP INT TERM; ` +
	`mkdir -p "$t" || { echo "cannot make the directory $t" >&2; exit 93; }; ` +
	`head -c "$2" > "$t/zxfer" || { echo "cannot write $t/zxfer" >&2; exit 93; }; ` +
	`[ "$(wc -c < "$t/zxfer")" -eq "$2" ] || { echo "the copy of zxfer was cut off" >&2; exit 1; }; chmod 700 "$t/zxfer"; ` +
	// The binary checks itself: its id is the hash of what arrived.
	`[ "$("$t/zxfer" agent --id)" = "$1" ] || { echo "cannot run $t/zxfer: is it on a file system mounted noexec?" >&2; exit 93; }; ` +
	`mkdir -p "$d" && mv "$t/zxfer" "$d/zxfer" || { echo "cannot write $d/zxfer" >&2; exit 93; }; rmdir "$t"; trap - EXIT HUP INT TERM; umask "$u"; ` +
	// Other copies may be under way, of other builds and by other hosts: only
	// what is a day old was left behind.
	`(cd "$c" && { find . -name "part.*" -prune -mtime +0 -exec rm -rf {} ";" 2>/dev/null; ` +
	`ls -t | grep -v "^part[.]" | tail -n +6 | while read -r old; do [ "$old" = "$1" ] || rm -rf "./$old"; done; }); ` +
	`exec "$d/zxfer" agent ${3:+"$3"}`

// command is what the other host's login shell is given.
func command(self Self, argument string) string {
	return "exec sh -c '" + script + "' zxfer " + self.ID + " " + strconv.FormatInt(self.Size, 10) + " " + shellquote.Join(argument)
}
