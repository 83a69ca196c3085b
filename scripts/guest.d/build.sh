#!/usr/bin/env bash
# Builds the guest from Debian packages: build.sh CACHE ZFS LINK. Called by
# scripts/guest, which gives the link that is to name the result.
#
# The parts (kernel, ZFS modules, root, init) are kept apart below CACHE, each
# under the hash of what went into it, so that a change makes only its part
# anew. A part is built in CACHE/tmp.* and renamed when complete; one build
# runs at a time.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=../env
. "$here/../env"
cache=$1 zfs=$2 link=$3

# What to take from where. One kernel serves 2.3 and 2.4; 7.2 makes system
# calls half as dear as 6.12 (seccomp mode), which stands in when the backports
# no longer have 7.2. ZFS 2.1 knows no kernel newer than 6.2.
case $zfs in
2.1) base=bookworm zfs_suite=bookworm kernels=(linux-source-6.1) ;;
2.3) base=trixie zfs_suite=trixie kernels=(linux-source-7.2 linux-source-6.12) ;;
2.4) base=trixie zfs_suite=trixie-backports kernels=(linux-source-7.2 linux-source-6.12) ;;
esac
suites=("$base")
if [ "$base" = trixie ]; then suites+=(trixie-backports); fi

say() { printf 'guest: %s\n' "$*" >&2; }
fail() {
	say "$1"
	if [ -n "${2:-}" ]; then printf 'hint: %s\n' "$2" >&2; fi
	exit 1
}

# --------------------------------------------------------------- the build host

host_packages=(build-essential flex bison bc libelf-dev kmod xz-utils mmdebstrap
	debian-archive-keyring)
# mmdebstrap without root works in a user namespace.
if [ "$(id -u)" != 0 ]; then host_packages+=(uidmap); fi

prepare_host() {
	local missing
	mapfile -t missing < <(missing_packages "${host_packages[@]}")
	if [ ${#missing[@]} = 0 ]; then return; fi
	if [ "$(id -u)" != 0 ]; then
		fail "this host lacks ${missing[*]}" "apt-get install ${missing[*]} (as root)"
	fi
	say "installing on this host: ${missing[*]}"
	log=$cache/log/host
	apt_install "${missing[@]}" >"$log" 2>&1 || failed "installing packages"
}

# ---------------------------------------------------------------------- packages

# An apt of our own for the suites that are not this host's.
setup_apt() {
	local dir=$cache/apt-$base suite
	mkdir -p "$dir/lists/partial" "$dir/archives/partial"
	: >"$dir/status"
	sources=()
	for suite in "${suites[@]}"; do
		sources+=("deb [signed-by=$keyring] $mirror $suite main contrib")
	done
	printf '%s\n' "${sources[@]}" >"$dir/sources.list"
	cat >"$dir/apt.conf" <<EOF
Dir::State "$dir";
Dir::State::status "$dir/status";
Dir::State::lists "$dir/lists";
Dir::Cache "$dir";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
APT::Sandbox::User "$(id -un)";
EOF
	export APT_CONFIG=$dir/apt.conf
}

update_apt() { apt-get -q update --error-on=any; }

# version_in SUITE PACKAGE: the newest version there, or nothing. Of what
# apt-cache madison said ("PACKAGE | VERSION | URI SUITE/COMPONENT ...").
version_in() {
	awk -F ' *[|] *' -v s="$1/" -v p="$2" '
		{ sub("^ *", "", $1); split($3, f, " ") }
		$1 == p && index(f[2], s) == 1 { print $2; exit }' <<<"$madison"
}

resolve() {
	local k s p v from madison packages
	mapfile -t packages < <(sed -e 's/#.*//' "$here/packages" | grep -o '[^[:space:]]\+')
	madison=$(apt-cache madison zfs-dkms "${kernels[@]}" "${packages[@]}")
	kernel_package='' kernel_version=''
	for k in "${kernels[@]}"; do
		for s in "${suites[@]}"; do
			v=$(version_in "$s" "$k")
			if [ -n "$v" ]; then
				kernel_package=$k kernel_version=$v
				break 2
			fi
		done
	done
	[ -n "$kernel_version" ] || fail "the mirror has none of ${kernels[*]}" "ZXFER_GUEST_MIRROR=URL scripts/guest build"
	if [ "$kernel_package" != "${kernels[0]}" ]; then
		say "the mirror has no ${kernels[0]}: using $kernel_package, slower by half in system calls"
	fi
	zfs_version=$(version_in "$zfs_suite" zfs-dkms)
	case $zfs_version in
	"$zfs".*) ;;
	*) fail "$zfs_suite has zfs-dkms ${zfs_version:-not at all}, not $zfs" ;;
	esac
	root_versions=
	for p in "${packages[@]}"; do
		from=$base
		case $p in zfsutils-linux | python3-pyzfs) from=$zfs_suite ;; esac
		v=$(version_in "$from" "$p")
		[ -n "$v" ] || fail "$from has no package $p (see scripts/guest.d/packages)"
		root_versions+="$p=$v "
	done
}

fetch() { # PACKAGE VERSION: into the current directory
	apt-get -q download "$1=$2" && mv ./"$1"_*.deb "$1.deb"
}

# ------------------------------------------------------------------------- steps

step_no=0 step_count=0 log=

# failed WHAT: the end of a build, with what the log says last.
failed() {
	say "$1 failed; the last lines of $log:"
	tail -n 30 -- "$log" | sed 's/^/  | /' >&2
	exit 1
}

# step PART WHAT COMMAND...: one step, timed and logged.
step() {
	local part=$1 what=$2 start=$SECONDS
	shift 2
	step_no=$((step_no + 1))
	printf 'guest: %s: %s (%d/%d) ...' "$part" "$what" "$step_no" "$step_count" >&2
	printf '\n=== %s: %s\n' "$part" "$what" >>"$log"
	if ! "$@" >>"$log" 2>&1 </dev/null 9<&-; then
		printf ' failed\n' >&2
		failed "$part: $what"
	fi
	printf ' %d s\n' $((SECONDS - start)) >&2
}

hash_of() { # FILE... -- TEXT...
	local files=()
	while [ "$1" != -- ]; do
		files+=("$1")
		shift
	done
	{
		printf '%s\n' "$@"
		cd "$here" && sha256sum -- "${files[@]}"
	} | sha256sum | cut -c1-12
}

# begin PART: an empty work directory and log; end DIR: the finished part.
begin() {
	log=$cache/log/$(basename -- "$1")
	: >"$log"
	work=$cache/tmp.$(basename -- "$1")
	rm -rf -- "$work"
	mkdir -- "$work"
	cd -- "$work"
}

end() {
	cd -- "$cache"
	mv -T -- "$work/out" "$1"
	rm -rf -- "$work"
}

build_kernel() {
	begin "$kernel_dir"
	step kernel "fetching $kernel_package $kernel_version" fetch "$kernel_package" "$kernel_version"
	step kernel unpacking "$here/kernel.sh" unpack "$kernel_package.deb"
	step kernel configuring "$here/kernel.sh" configure
	step kernel compiling "$here/kernel.sh" compile
	step kernel installing "$here/kernel.sh" install "$work/out"
	end "$kernel_dir"
}

build_zfs() {
	begin "$zfs_dir"
	step zfs "fetching $zfs_version" fetch zfs-dkms "$zfs_version"
	step zfs unpacking "$here/zfs.sh" unpack zfs-dkms.deb
	step zfs configuring "$here/zfs.sh" configure "$kernel_dir"
	step zfs compiling "$here/zfs.sh" compile
	step zfs installing "$here/zfs.sh" install "$kernel_dir" "$work/out"
	end "$zfs_dir"
}

build_root() {
	# The backports only for their ZFS: root.sh takes it from there if it can.
	local from=("${sources[@]}")
	if [ "$zfs_suite" = "$base" ]; then from=("${sources[0]}"); fi
	# What root's mmdebstrap mounts is gone with it, even where it is killed.
	local apart=()
	if [ "$(id -u)" = 0 ]; then apart=(unshare --mount); fi
	begin "$root_dir"
	step root "installing $base" "${apart[@]}" env -u APT_CONFIG "$here/root.sh" "$work/out" "$base" "${from[@]}"
	end "$root_dir"
}

build_init() {
	begin "$init_dir"
	mkdir out
	step init compiling gcc -static -O2 -Wall -Wextra -o out/init "$here/init.c"
	end "$init_dir"
}

# -------------------------------------------------------------------------- main

mkdir -p "$cache/log"
exec 9>"$cache/lock"
if ! flock -n 9; then
	say "waiting for another build to finish"
	flock 9
fi
if [ -e "$link/linux" ] && [ -z "${GUEST_UPDATE:-}" ]; then
	say "built meanwhile: $link"
	exit 0
fi
rm -rf --one-file-system -- "$cache"/tmp.*
begun=$SECONDS

prepare_host
mirror=$(debian_mirror)
setup_apt
log=$cache/log/apt-$base
: >"$log"
step_count=1
step packages "reading the lists of ${suites[*]}" update_apt
resolve

kernel_dir=$cache/kernel-$(hash_of kernel.sh kernel.config -- "$kernel_package $kernel_version")
zfs_dir=$cache/zfs-$(hash_of zfs.sh -- "$(basename -- "$kernel_dir")" "$zfs_version")
root_dir=$cache/root-$(hash_of root.sh packages -- "$base, zfs of $zfs_suite" "$root_versions")
init_dir=$cache/init-$(hash_of init.c --)
[ -d "$kernel_dir" ] || step_count=$((step_count + 5))
[ -d "$zfs_dir" ] || step_count=$((step_count + 5))
[ -d "$root_dir" ] || step_count=$((step_count + 1))
[ -d "$init_dir" ] || step_count=$((step_count + 1))

[ -d "$init_dir" ] || build_init
[ -d "$kernel_dir" ] || build_kernel
[ -d "$zfs_dir" ] || build_zfs
[ -d "$root_dir" ] || build_root

# The guest itself: links to its parts, under the hash of them all.
guest=guest-$(printf '%s\n' "$kernel_dir" "$zfs_dir" "$root_dir" "$init_dir" | sha256sum | cut -c1-12)
rm -rf -- "$cache/tmp.guest"
mkdir -- "$cache/tmp.guest"
cd -- "$cache/tmp.guest"
ln -s "../$(basename -- "$kernel_dir")/linux" linux
ln -s "../$(basename -- "$zfs_dir")/modules" modules
ln -s "../$(basename -- "$root_dir")" root
ln -s "../$(basename -- "$init_dir")/init" init
printf 'zfs %s\nkernel %s %s\nroot %s %s\n' "$zfs_version" "$kernel_package" "$kernel_version" "$base" "$root_versions" >info
cd -- "$cache"
[ -d "$guest" ] || mv -T -- tmp.guest "$guest"
rm -rf -- tmp.guest
ln -sfn -- "$guest" "$link.new"
mv -fT -- "$link.new" "$link"
say "built $cache/$guest (ZFS $zfs_version, $kernel_package $kernel_version) in $((SECONDS - begun)) s"
