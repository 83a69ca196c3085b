#!/usr/bin/env bash
# Steps of building the ZFS modules, called by build.sh in an empty work
# directory: unpack DEB, configure KERNEL, compile, install KERNEL OUT. KERNEL
# is what kernel.sh made.
set -euo pipefail

unpack() { # DEB
	dpkg-deb -x "$1" deb
	mv deb/usr/src/zfs-* src
	rm -rf deb
}

configure() { # KERNEL
	cd src
	# The names under which ZFS's checks and its build hand ARCH to the kernel's
	# makefiles; without them they would look for a kernel of the host's kind.
	./configure --with-config=kernel --with-linux="$1/src" --with-linux-obj="$1/src" \
		ARCH_UM=ARCH=um KERNEL_ARCH=um
}

compile() {
	local extra=()
	# ZFS 2.1 does not know that UML is x86, so it leaves files out that the
	# others call; and UML's names for setjmp and longjmp, which the C sources
	# get by its flags, have to reach the assembler.
	if ! grep -qs CONFIG_UML_X86 src/module/Kbuild.in; then
		extra=(CONFIG_X86=y
			'AFLAGS_MODULE=-Dsetjmp=kernel_setjmp -Dlongjmp=kernel_longjmp')
	fi
	make -C src -j"$(nproc)" ARCH=um KERNEL_ARCH=um ARCH_UM=ARCH=um "${extra[@]}"
}

install_to() { # KERNEL OUT
	local version
	version=$(basename -- "$(find "$1/modules" -mindepth 1 -maxdepth 1 -type d | head -n1)")
	mkdir -p "$2"
	# depmod wants its directory below lib/modules.
	mkdir -p stage/lib
	cp -a "$1/modules" stage/lib/modules
	mkdir "stage/lib/modules/$version/extra"
	find src/module -name '*.ko' -exec cp -t "stage/lib/modules/$version/extra" {} +
	strip --strip-debug "stage/lib/modules/$version/extra/"*.ko
	depmod -b stage "$version"
	mv stage/lib/modules "$2/modules"
}

case $1 in
unpack) unpack "$2" ;;
configure) configure "$2" ;;
compile) compile ;;
install) install_to "$2" "$3" ;;
esac
