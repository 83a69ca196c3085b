#!/usr/bin/env bash
# Steps of building the guest's kernel, called by build.sh in an empty work
# directory: unpack DEB, configure, compile, install OUT.
#
# The source tree is its own build directory (no O=): that leaves no absolute
# paths in it, so the result can be moved, and ZFS is built against it later.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)

# The options whose loss would only show much later, in a test.
required='64BIT MAGIC_SYSRQ SECCOMP_FILTER SWAP HOSTFS MODULES KALLSYMS_ALL OVERLAY_FS EXT4_FS FUSE_FS
	BLK_DEV_LOOP BLK_DEV_NBD BLK_DEV_NULL_BLK MD_RAID0 MD_RAID1 BLK_DEV_DM
	DM_DELAY DM_DUST DM_FLAKEY DM_SNAPSHOT DM_THIN_PROVISIONING DM_ZERO
	USER_NS PID_NS NET_NS PACKET IPV6 INET_TCP_DIAG TCP_CONG_BBR VETH BRIDGE
	NET_SCH_FQ NET_SCH_HTB NET_SCH_NETEM NET_SCH_TBF NF_TABLES NFT_COMPAT
	IP_NF_TARGET_REJECT NETFILTER_XT_MATCH_QUOTA TASK_IO_ACCOUNTING'

build() { make -C src ARCH=um KBUILD_BUILD_USER=zxfer KBUILD_BUILD_HOST=guest "$@"; }

unpack() { # DEB
	local tarball
	dpkg-deb -x "$1" deb
	tarball=$(find deb/usr/src -name 'linux-source-*.tar.*' | head -n1)
	mkdir -p src
	# Without most of what can only be compiled for hardware: half the files.
	tar -xf "$tarball" -C src --strip-components=1 \
		--exclude='*/Documentation/[a-z]*' \
		--exclude='*/tools/testing' --exclude='*/tools/perf' \
		--exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/media/*.[ch]' \
		--exclude='*/drivers/net/ethernet/*.[ch]' --exclude='*/drivers/net/wireless/*.[ch]' \
		--exclude='*/drivers/staging/*.[ch]' --exclude='*/drivers/scsi/*.[ch]' \
		--exclude='*/drivers/infiniband/*.[ch]' --exclude='*/sound/*.[ch]' \
		--exclude='*/arch/*/boot/dts/*'
	rm -rf deb
}

configure() {
	local option missing=
	cp -- "$here/kernel.config" config
	# 6.1 exports a function of the C library that has no static version any
	# more, so it has to be linked to that of the host.
	if grep -qs __xmknod src/arch/um/os-Linux/user_syms.c; then
		sed -i '/^CONFIG_STATIC_LINK=/d' config
	fi
	build KCONFIG_ALLCONFIG="$PWD/config" allnoconfig
	# For the log: what this version knows under another name or not at all.
	while read -r option; do
		grep -qxF "$option" src/.config || echo "not taken: $option"
	done < <(grep '^CONFIG_' config)
	for option in $required; do
		grep -qx "CONFIG_$option=y" src/.config || missing+=" $option"
	done
	if [ -n "$missing" ]; then
		echo "error: the kernel configuration lacks$missing" >&2
		return 1
	fi
}

compile() {
	build -j"$(nproc)" linux modules
}

install_to() { # OUT
	mkdir -p "$1"
	install -m 755 src/linux "$1/linux"
	strip "$1/linux"
	build INSTALL_MOD_PATH="$PWD/mods" modules_install
	mv mods/lib/modules "$1/modules"
	rm -f "$1"/modules/*/build "$1"/modules/*/source
	# Modules need headers, scripts, configuration and symbol versions.
	find src -path src/scripts -prune -o -path src/tools -prune -o \
		-type f \( -name '*.c' -o -name '*.o' -o -name '*.a' -o -name '*.S' -o -name '.*.cmd' \) \
		-exec rm -f {} +
	rm -f src/linux src/vmlinux src/vmlinux.* src/.tmp_vmlinux*
	mv src "$1/src"
}

case $1 in
unpack) unpack "$2" ;;
configure) configure ;;
compile) compile ;;
install) install_to "$2" ;;
esac
