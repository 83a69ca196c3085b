package sshexec

import (
	"github.com/kballard/go-shellquote"
)

// exitRefused is how the remote script ends when the host cannot take zxfer.
const exitRefused = 93

// Lines that come from the other host, behind whatever its login shell prints.
// An empty line comes before each, as that may have left its last line open.
const (
	agentWord = "zxfer-agent " // an agent's hello
	relayWord = "zxfer-relay"  // a relay's
	// The script has not found the build that it looked for:
	// "zxfer-need SYSTEM MACHINE CODING THERE", where CODING is "gzip" where the
	// host has that, and THERE is VERSION/PROTOCOL of the zxfer in its PATH, if any.
	needWord = "zxfer-need "
)

// The answers to needWord.
const (
	tryWord  = "try"  // "try ID": look for this build, which is for that machine
	sendWord = "send" // "send N CODING": N bytes of the build follow
)

// places defines what goes to the directories where the binary may be kept: for
// each of "$@", home stands for one that is only looked up where it is needed.
const places = `u="$(id -u)"; ` +
	`set -- "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/zxfer}" "${HOME:+$HOME/.cache/zxfer}" home "${TMPDIR:-/tmp}/zxfer-$u"; ` +
	// The account's own home, where HOME is not set or another's.
	`home() { { getent passwd "$u" || cat /etc/passwd; } 2>/dev/null | ` +
	`while IFS=: read -r x x y x x h x; do if [ "$y" = "$u" ]; then echo "$h/.cache/zxfer"; break; fi; done; }; ` +
	// Goes to a directory, but not by a link in place of it.
	`enter() { cd -P "${1%/*}/" 2>/dev/null && p="$(pwd -P)" && cd -P "./${1##*/}" 2>/dev/null && [ "$(pwd -P)" = "${p%/}/${1##*/}" ]; }; ` +
	// No links, of the account or of root, and to be written by nobody else.
	`ours() ( l="$(ls -ldn "$@" 2>/dev/null)" && echo "$l" | while read -r m x w x; do ` +
	`case "$m:$w" in [d-]????-??-*:"$u" | [d-]????-??-*:0) ;; *) exit 1 ;; esac; done ); `

// each begins a loop over the places.
const each = `for c; do [ "$c" = home ] && c="$(home)"; case "$c" in /*) ;; *) continue ;; esac; `

// script finds this very zxfer on the other host, or asks for it, and becomes
// its agent. It is for any POSIX shell, and on one line without single quotes
// and exclamation marks: the login shell that reads it first, inside single
// quotes, may be any.
//
// $1 is the wanted build, $2 its release as VERSION/PROTOCOL or "", $3 a further
// argument of the agent or "". The binary is kept in a directory that nobody
// but the account and root can write. The script goes there first and looks then, so
// that what it looked at is what it runs and writes, whoever owns the directories above.
// The hash finds what a host that lost power stored without its bytes; it takes a
// tenth of a second and more, so that it is remembered until the next start.
const script = `i="$1"; r="$2"; a="$3"; o="$(pwd)"; ` + places +
	// It is hashed once after each start of the host, and when it was written since.
	`{ read -r b < /proc/sys/kernel/random/boot_id; } 2>/dev/null; ` +
	`mark() ( umask 077; rm -f "$i/whole"; echo "$b $(uname -m)" > "$i/whole" ) 2>/dev/null; ` +
	`whole() { k=; x=; [ -O "$i/whole" ] && [ "$i/whole" -nt "$i/zxfer" ] && { read -r k x < "$i/whole"; } 2>/dev/null; [ -n "$b" ] && [ "$k" = "$b" ] && return 0; ` +
	// Hosts of other machines may share the home, and have put it there.
	`case "$x" in "" | "$(uname -m)") ;; *) return 1 ;; esac; ` +
	`if command -v sha256sum >/dev/null; then h="$(sha256sum < "$i/zxfer")"; else h="$("./$i/zxfer" agent --id)"; fi 2>/dev/null; [ "${h%% *}" = "$i" ] && { mark || true; }; }; ` +
	`look() { ` + each +
	`if enter "$c" && [ -f "$i/zxfer" ] && [ -x "$i/zxfer" ] && ours . "$i" "$i/zxfer" && whole; then exec "./$i/zxfer" agent ${a:+"$a"}; fi; done; cd "$o"; ` +
	// One that is installed will do if it is the same build or release.
	`v=; z="$(command -v zxfer)"; [ -n "$z" ] && v="$("$z" agent --id 2>/dev/null)"; ` +
	`case "$v" in "$i" | "$i "* | [0-9a-f]*" ${r:-$i}") exec "$z" agent ${a:+"$a"} ;; esac; ` +
	`g=-; [ "$(echo a | gzip 2>/dev/null | gzip -d 2>/dev/null)" = a ] && g=gzip; ` +
	`echo; echo "zxfer-need $(uname -s) $(uname -m) $g ${v##* }"; g=; read -r answer n g; }; ` +
	`look "$@"; [ "$answer" = try ] && { i="$n"; look "$@"; }; [ "$answer" = send ] || exit 0; ` +
	`m="$(umask)"; umask 077; f=; ` + each +
	`mkdir -p "${c%/*}" || continue; [ -e "$c" ] || [ -h "$c" ] || mkdir -m 700 "$c" || continue; ` +
	`if enter "$c" && [ -w . ] && ours .; then f=1; break; fi; ` +
	`echo "$c is not used: it is a link, or others may write it, or this account may not" >&2; done; ` +
	`[ "$f" ] || { echo "no directory takes zxfer" >&2; exit 93; }; ` +
	`[ "$c" = "${TMPDIR:-/tmp}/zxfer-$u" ] && echo "no home takes zxfer: it is kept in $c" >&2; ` +
	// The cache may be shared with other hosts, which count their processes alike.
	`t="part.$(uname -n).$$"; trap "rm -rf \"./\$t\"" EXIT; trap "exit 1" HUP INT TERM; rm -rf "./$t"; ` +
	`mkdir -m 700 "./$t" || { echo "cannot make the directory $c/$t" >&2; exit 93; }; ` +
	`[ "$g" = gzip ] && g=.gz || g=; head -c "$n" > "./$t/zxfer$g" || { echo "cannot write $c/$t/zxfer$g" >&2; exit 93; }; ` +
	`[ "$(wc -c < "./$t/zxfer$g")" -eq "$n" ] || { echo "the copy of zxfer was cut off" >&2; exit 1; }; ` +
	`[ -z "$g" ] || gzip -d "./$t/zxfer.gz" || { echo "cannot write $c/$t/zxfer" >&2; exit 93; }; chmod 700 "./$t/zxfer"; ` +
	// The binary checks itself: its id is the hash of what arrived.
	`v="$("./$t/zxfer" agent --id)"; [ "${v%% *}" = "$i" ] || { echo "cannot run $c/$t/zxfer: is it on a file system mounted noexec?" >&2; exit 93; }; ` +
	`case "$r" in "" | "${v#* }") ;; *) echo "the zxfer for $(uname -m) is ${v#* }, and not $r" >&2; exit 93 ;; esac; ` +
	// Another may install the same at this moment: what is sound is not removed.
	`mkdir -m 700 "$i" 2>/dev/null; { [ -d "$i" ] && ours "$i"; } || { rm -rf "./$i"; mkdir -m 700 "$i"; }; [ -f "$i/zxfer" ] || rm -rf "./$i/zxfer"; ` +
	`mv -f "./$t/zxfer" "$i/zxfer" || { echo "cannot write $c/$i/zxfer" >&2; exit 93; }; mark; rmdir "./$t"; trap - EXIT HUP INT TERM; umask "$m"; ` +
	// Other copies may be under way, of other builds and by other hosts: only
	// what is a day old was left behind. Of older builds the newest two stay, those
	// for other machines not counted, with which the cache may be shared: a
	// running one can be removed, its file lives until it ends.
	`{ find . -name "part.*" -prune -mtime +0 -exec rm -rf {} ";" 2>/dev/null; ` +
	`w="$(uname -m)"; y=0; ls -t | grep -x "[0-9a-f]*" | while read -r d; do x=; { read -r k x < "$d/whole"; } 2>/dev/null; ` +
	`case "$x" in "" | "$w") ;; *) continue ;; esac; y=$((y + 1)); [ "$y" -le 3 ] || [ "$d" = "$i" ] || rm -rf "./$d"; done; }; ` +
	`exec "./$i/zxfer" agent ${a:+"$a"}`

// command is what the other host's login shell is given.
func command(id, release, argument string) string {
	return "exec sh -c '" + script + "' zxfer " + shellquote.Join(id, release, argument)
}
