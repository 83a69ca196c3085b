# Finds the same zxfer on this host, or requests it, and becomes its agent. It follows cachedirs.sh.
#
# $i is the wanted build, and $r its release as VERSION/PROTOCOL or "". The binary is in a directory that only the
# account and root can write. The script enters the directory before it checks it, so that it runs and writes the
# files that it checked. The hash detects files whose data was lost in a power failure. It takes a tenth of a second
# or more, so the result is stored until the next boot.
#
# The login shell reads the script first, inside single quotes, and may be any shell. So it becomes one line
# without single quotes and exclamation marks (oneLine).

# The file is hashed once after each boot and after each change.
{ read -r b < /proc/sys/kernel/random/boot_id; } 2>/dev/null;
mark() ( umask 077; rm -f "$i/whole"; echo "$b $(uname -m)" > "$i/whole" ) 2>/dev/null;
whole() {
	k=; x=; [ -O "$i/whole" ] && [ "$i/whole" -nt "$i/zxfer" ] && { read -r k x < "$i/whole"; } 2>/dev/null;
	[ -n "$b" ] && [ "$k" = "$b" ] && return 0;
	# Hosts with another architecture may share the home directory.
	case "$x" in "" | "$(uname -m)") ;; *) return 1 ;; esac;
	if command -v sha256sum >/dev/null; then h="$(sha256sum < "$i/zxfer")"; else h="$("./$i/zxfer" agent --id)"; fi 2>/dev/null;
	[ "${h%% *}" = "$i" ] && { mark || true; };
};
here() {
	if enter "$c" && [ -f "$i/zxfer" ] && [ -x "$i/zxfer" ] && ours . "$i" "$i/zxfer" && whole; then exec "./$i/zxfer" agent; fi;
	return 1;
};
look() {
	each here "$@"; cd "$o";
	# An installed zxfer is used if it has the same build or release.
	v=; z="$(command -v zxfer)"; [ -n "$z" ] && v="$("$z" agent --id 2>/dev/null)";
	case "$v" in "$i" | "$i "* | [0-9a-f]*" ${r:-$i}") exec "$z" agent ;; esac;
	g=-; [ "$(echo a | gzip 2>/dev/null | gzip -d 2>/dev/null)" = a ] && g=gzip;
	echo; echo "zxfer-need $(uname -s) $(uname -m) $g ${v##* }"; g=; read -r answer n g;
};
look "$@"; [ "$answer" = try ] && { i="$n"; look "$@"; }; [ "$answer" = send ] || exit 0;

m="$(umask)"; umask 077;
# Enters the directory, which it makes if necessary.
make() {
	mkdir -p "${c%/*}" || return 1; [ -e "$c" ] || [ -h "$c" ] || mkdir -m 700 "$c" || return 1;
	enter "$c" && [ -w . ] && ours . && return 0;
	echo "$c is not used: it is a link, or others may write it, or this account may not" >&2;
	return 1;
};
each make "$@" || { echo "no directory takes zxfer" >&2; exit 93; };
[ "$c" = "${TMPDIR:-/tmp}/zxfer-$u" ] && echo "no home takes zxfer: it is kept in $c" >&2;
# Hosts that share the cache may use the same process number.
t="part.$(uname -n).$$"; trap "rm -rf \"./\$t\"" EXIT; trap "exit 1" HUP INT TERM; rm -rf "./$t";
mkdir -m 700 "./$t" || { echo "cannot make the directory $c/$t" >&2; exit 93; };
[ "$g" = gzip ] && g=.gz || g=; head -c "$n" > "./$t/zxfer$g" || { echo "cannot write $c/$t/zxfer$g" >&2; exit 93; };
[ "$(wc -c < "./$t/zxfer$g")" -eq "$n" ] || { echo "the copy of zxfer was cut off" >&2; exit 1; };
[ -z "$g" ] || gzip -d "./$t/zxfer.gz" || { echo "cannot write $c/$t/zxfer" >&2; exit 93; }; chmod 700 "./$t/zxfer";
# The binary checks itself: its id is the hash of its file.
v="$("./$t/zxfer" agent --id)"; [ "${v%% *}" = "$i" ] || { echo "cannot run $c/$t/zxfer: is it on a file system mounted noexec?" >&2; exit 93; };
case "$r" in "" | "${v#* }") ;; *) echo "the zxfer for $(uname -m) is ${v#* }, and not $r" >&2; exit 93 ;; esac;
# Another process may install the same build at the same time, so a valid one is not removed.
mkdir -m 700 "$i" 2>/dev/null; { [ -d "$i" ] && ours "$i"; } || { rm -rf "./$i"; mkdir -m 700 "$i"; }; [ -f "$i/zxfer" ] || rm -rf "./$i/zxfer";
mv -f "./$t/zxfer" "$i/zxfer" || { echo "cannot write $c/$i/zxfer" >&2; exit 93; }; mark; rmdir "./$t"; trap - EXIT HUP INT TERM; umask "$m";
# Other hosts may be copying builds at the same time, so only partial copies older than a day are removed. The
# newest two older builds are kept. Builds for other architectures are not counted, because the cache may be
# shared. Removing a running binary is safe.
{
	find . -name "part.*" -prune -mtime +0 -exec rm -rf {} ";" 2>/dev/null;
	w="$(uname -m)"; y=0; ls -t | grep -x "[0-9a-f]*" | while read -r d; do
		x=; { read -r k x < "$d/whole"; } 2>/dev/null;
		case "$x" in "" | "$w") ;; *) continue ;; esac;
		y=$((y + 1)); [ "$y" -le 3 ] || [ "$d" = "$i" ] || rm -rf "./$d";
	done;
};
exec "./$i/zxfer" agent
