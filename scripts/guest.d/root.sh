#!/usr/bin/env bash
# Makes the guest's root directory: root.sh OUT SUITE SOURCE... with the lines
# of sources.list to install from. If the suite has backports among them, ZFS
# is taken from there and nothing else is.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
out=$1 suite=$2
shift 2

packages=$(sed -e 's/#.*//' "$here/packages" | tr -s '[:space:]' ',' | sed -e 's/^,//' -e 's/,$//')

pin='Package: zfsutils-linux zfs-zed python3-pyzfs libzfs* libzpool* libnvpair* libuutil*
Pin: release n=*-backports
Pin-Priority: 990'

# What minbase does not set up, and what it copies from the host.
# shellcheck disable=SC2016 # expanded by mmdebstrap's shell, in its hook
finish='set -e; cd "$1"
echo guest >etc/hostname
printf "127.0.0.1 localhost guest\n::1 localhost ip6-localhost\n" >etc/hosts
: >etc/resolv.conf
ln -sfn /proc/self/mounts etc/mtab
mkdir -p -m 700 root/.ssh
rm -f etc/machine-id var/log/apt/* var/log/*.log
rm -rf usr/share/doc usr/share/info usr/share/man usr/share/locale
ls etc/ssh/ssh_host_ed25519_key >/dev/null'

# There is no udev in the guest: device nodes are made by the tools themselves.
# etc/environment is for sessions of sshd.
# shellcheck disable=SC2016
no_udev='set -e; cd "$1"
printf "DM_DISABLE_UDEV=1\nMDADM_NO_UDEV=1\n" >>etc/environment
mkdir -p etc/lvm
printf "activation { udev_sync = 0 udev_rules = 0 }\ndevices { obtain_device_list_from_udev = 0 external_device_info_source = \"none\" }\n" >etc/lvm/lvmlocal.conf'

options=(--variant=minbase "--include=$packages"
	--keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	--aptopt='APT::Install-Recommends "false"'
	--aptopt='Acquire::Languages "none"'
	--dpkgopt='path-exclude=/usr/share/doc/*'
	--dpkgopt='path-exclude=/usr/share/info/*'
	--dpkgopt='path-exclude=/usr/share/man/*'
	--dpkgopt='path-exclude=/usr/share/locale/*'
	--dpkgopt='force-unsafe-io'
	--customize-hook="$finish" --customize-hook="$no_udev")
case "$*" in
*-backports*)
	# shellcheck disable=SC2016
	options+=(--setup-hook='mkdir -p "$1/etc/apt/preferences.d"'
		--setup-hook="printf '%s\\n' '$pin' >\"\$1/etc/apt/preferences.d/zfs\"")
	;;
esac

if [ "$(id -u)" = 0 ]; then
	mmdebstrap --mode=root --format=directory "${options[@]}" "$suite" "$out" "$@"
else
	# All of it belongs to this user, whom the runner shows to the guest as root.
	mkdir -p "$out"
	mmdebstrap --mode=unshare --format=tar "${options[@]}" "$suite" - "$@" |
		tar -x -C "$out" --no-same-owner --exclude='./dev/*'
fi
