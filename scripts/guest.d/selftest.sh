#!/usr/bin/env bash
# scripts/guest selftest: selftest.sh RUNNER ZFS. Checks the behaviour of the runner
# that docs/dev/guest.md describes, then runs selftest-guest.sh in the guest. A check is
# a function. Its output is printed only if it fails.
# shellcheck disable=SC2317 # the functions are called by name
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
guest=("$1" run --zfs "$2")
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
cd -- "$here"

st_boot() {
	local start=${EPOCHREALTIME/./} ms
	"${guest[@]}" true
	ms=$(((${EPOCHREALTIME/./} - start) / 1000))
	echo "start to end took $ms ms"
	[ "$ms" -lt 10000 ] # under 3000 on an idle host
}

st_status() {
	local rc=0
	"${guest[@]}" sh -c 'exit 7' || rc=$?
	[ "$rc" = 7 ]
}

st_streams() {
	"${guest[@]}" sh -c 'echo out; echo err >&2' >"$tmp/out" 2>"$tmp/err"
	printf 'out\n' | cmp - "$tmp/out"
	printf 'err\n' | cmp - "$tmp/err"
}

st_arguments() {
	# shellcheck disable=SC1003,SC2016 # meant as they are
	local args=('a b' $'line\nbreak' '' '$HOME' "'" '"' '\' '*' 'ü' $'\t')
	"${guest[@]}" printf '%s\0' "${args[@]}" >"$tmp/out"
	printf '%s\0' "${args[@]}" | cmp - "$tmp/out"
}

# shellcheck disable=SC2016 # for the guest's shell
st_environment() {
	ZXFER_SELFTEST=$'a b\nc' XDG_DATA_HOME=/nowhere "${guest[@]}" \
		sh -c 'printf %s "$ZXFER_SELFTEST,$XDG_DATA_HOME,$ZXFER_GUEST"' >"$tmp/out"
	printf 'a b\nc,,1' | cmp - "$tmp/out"
}

st_bytes() {
	head -c 10000001 /dev/urandom >"$tmp/data"
	ZXFER_GUEST_SHARE=$tmp "${guest[@]}" cat "$tmp/data" | cmp - "$tmp/data"
}

st_live() {
	local line start now
	exec {live}< <("${guest[@]}" sh -c 'echo first; sleep 3; echo last')
	read -r line <&"$live"
	start=${EPOCHREALTIME/./}
	[ "$line" = first ]
	read -r line <&"$live"
	now=${EPOCHREALTIME/./}
	[ "$line" = last ]
	echo "the second line came $(((now - start) / 1000)) ms after the first"
	[ $((now - start)) -gt 2000000 ]
}

st_shares() {
	local dir="$tmp/a share"
	mkdir -- "$dir"
	echo host >"$dir/file"
	(
		cd -- "$dir"
		[ "$("${guest[@]}" sh -c 'pwd; cat file; echo guest >new')" = "$dir"$'\n'host ]
	)
	[ "$(cat "$dir/new")" = guest ]
}

st_command() {
	# As go test -exec: a binary that exists on the host only.
	mkdir -- "$tmp/go-build"
	# shellcheck disable=SC2016
	printf '#!/bin/sh\necho "ran $0"\n' >"$tmp/go-build/x.test"
	chmod +x "$tmp/go-build/x.test"
	[ "$("${guest[@]}" "$tmp/go-build/x.test")" = "ran $tmp/go-build/x.test" ]
}

st_timeout() {
	local rc=0
	"${guest[@]}" --timeout 3 sh -c 'echo before; sleep 60' >"$tmp/out" || rc=$?
	[ "$rc" = 124 ]
	[ "$(cat "$tmp/out")" = before ]
}

st_panic() {
	local rc=0
	"${guest[@]}" --timeout 60 sh -c 'echo c >/proc/sysrq-trigger; sleep 50' 2>"$tmp/err" || rc=$?
	cat "$tmp/err"
	grep -q 'Kernel panic' "$tmp/err"
	[ "$rc" = 125 ]
}

st_parallel() {
	local a b
	"${guest[@]}" sh -c 'sleep 1; zpool version' >"$tmp/out" &
	a=$!
	"${guest[@]}" sh -c 'sleep 1; zpool version' >"$tmp/err" &
	b=$!
	wait "$a"
	wait "$b"
	cmp "$tmp/out" "$tmp/err"
}

# alive MARK: whether a process of the host that has not ended carries MARK in
# its environment, which all that a runner starts have of it.
alive() {
	local found
	# Its status tells of processes that ended meanwhile, too.
	found=$(grep -lsz -- "^ZXFER_SELFTEST=$1\$" /proc/[0-9]*/environ || :)
	echo "$found"
	[ -n "$found" ]
}

st_killed() { # SIGNAL
	local runner mark=$$.$1.$RANDOM
	: >"$tmp/out"
	ZXFER_SELFTEST=$mark "${guest[@]}" sh -c 'echo up; sleep 300' >"$tmp/out" 2>"$tmp/err" &
	runner=$!
	while ! grep -q up "$tmp/out"; do
		kill -0 "$runner"
		sleep 0.1
	done
	alive "$mark"
	kill -"$1" "$runner"
	wait "$runner" || :
	sleep 0.5
	echo "left behind after SIG$1:"
	if alive "$mark"; then return 1; fi
}

st_kill() { st_killed KILL; }
st_term() { st_killed TERM; }

# run_check NAME[: TEXT]
run_check() {
	local start=${EPOCHREALTIME/./} rc
	# A shell of its own with set -e in force, which is off in all that a
	# condition calls.
	set +e
	(
		set -e
		"st_${1%%:*}"
	) >"$tmp/log" 2>&1
	rc=$?
	set -e
	if [ "$rc" = 0 ]; then
		printf 'ok    %-42s %5d ms\n' "${1/:/,}" $(((${EPOCHREALTIME/./} - start) / 1000))
	else
		printf 'FAIL  %s\n' "${1/:/,}"
		sed 's/^/      | /' "$tmp/log"
		failures=$((failures + 1))
	fi
}

failures=0
for check in boot 'status: exit status' 'streams: stdout and stderr apart' arguments environment \
	'bytes: 10 MB of binary output' 'live: output as it comes' shares 'command: of the host, as go test -exec' \
	timeout panic 'parallel: two guests' 'term: runner terminated' 'kill: runner killed'; do
	run_check "$check"
done
"${guest[@]}" --timeout 300 "$here/selftest-guest.sh" || failures=$((failures + 1))
if [ "$failures" -gt 0 ]; then
	echo 'guest: selftest failed' >&2
	exit 1
fi
echo 'guest: selftest passed' >&2
