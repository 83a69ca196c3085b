#!/bin/bash
# The part of "scripts/guest selftest" that runs in the guest. It prints one line
# per check, and the output of a check only if it fails.
# shellcheck disable=SC2317 # check calls the functions
set -u

failures=0

check() { # NAME FUNCTION
	local start out rc
	start=$(date +%s%N)
	out=$("$2" 2>&1) # not as the condition: that would switch set -e off
	rc=$?
	if [ $rc = 0 ]; then
		printf 'ok    %-42s %5d ms\n' "$1" $((($(date +%s%N) - start) / 1000000))
	else
		printf 'FAIL  %s\n%s\n' "$1" "$out" | sed '2,$s/^/      | /'
		failures=$((failures + 1))
	fi
}

zfs_version() {
	set -e
	zpool version
	[ "$(zpool version | sed -n 's/^zfs-kmod-//p')" = "$(zpool version | sed -n 's/^zfs-\([0-9]\)/\1/p')" ]
}

pools() {
	set -e
	mkdir -p /pools
	mount -t tmpfs -o size=1G tmpfs /pools
	truncate -s 400M /pools/a /pools/b
	echo 'a long passphrase' >/pools/key
	zpool create -O compression=off src /pools/a
	zpool create dst /pools/b
	zfs create -o encryption=aes-256-gcm -o keyformat=passphrase \
		-o keylocation=file:///pools/key -o recordsize=1M src/data
	head -c 50000000 /dev/urandom >/src/data/file
	zfs snapshot src/data@1
}

raw_send() {
	set -e -o pipefail
	zfs send -w src/data@1 | zfs receive -u dst/data
	[ "$(zfs get -Hpo value keystatus dst/data)" = unavailable ]
	zfs load-key -L file:///pools/key dst/data
	zfs mount dst/data
	cmp /src/data/file /dst/data/file
}

pyzfs() { python3 -c 'import libzfs_core; assert libzfs_core.lzc_exists(b"src/data@1")'; }

channel_program() {
	set -e
	echo 'return 40 + 2' >/pools/program
	zfs program src /pools/program | grep 42
	echo 'error("no")' >/pools/program
	if zfs program src /pools/program; then return 1; fi
}

raidz() {
	set -e
	truncate -s 100M /pools/1 /pools/2 /pools/3 /pools/4
	zpool create -O checksum=sha256 z raidz2 /pools/1 /pools/2 /pools/3 /pools/4
	cp /src/data/file /z/file
	zpool export z
	zpool import -d /pools z
	head -c 60000000 /dev/urandom | dd of=/pools/2 bs=1M seek=5 conv=notrunc iflag=fullblock
	cmp /src/data/file /z/file
	zpool scrub -w z
	zpool status z
	[ "$(zpool list -H -o health z)" != FAULTED ]
	cmp /src/data/file /z/file
	zpool destroy z
}

export_pools() {
	set -e
	zpool export src
	zpool export dst
	zpool import -d /pools src
	zpool destroy src
	umount -l /pools
}

network() {
	set -e
	ip netns add a
	ip netns add b
	ip link add va netns a type veth peer name vb netns b
	ip -n a addr add 10.9.0.1/24 dev va
	ip -n b addr add 10.9.0.2/24 dev vb
	ip -n a link set va up
	ip -n b link set vb up
	ip netns exec a ping -c 1 -W 5 10.9.0.2
}

netem() {
	local ms
	set -e
	ip netns exec a tc qdisc add dev va root netem delay 50ms
	ms=$(ip netns exec a ping -c 2 -W 5 10.9.0.2 | sed -n 's/^rtt [^=]*= \([0-9]*\).*/\1/p')
	echo "the fastest ping took $ms ms with a delay of 50 ms"
	[ "$ms" -ge 49 ]
	ip netns exec a tc qdisc del dev va root
	ip netns exec a tc qdisc add dev va root tbf rate 100mbit burst 32kb latency 50ms
	ip netns exec a tc qdisc replace dev va root fq
	ip netns exec a tc qdisc replace dev va root handle 1: htb default 1
	ip netns exec a sysctl -q net.ipv4.tcp_congestion_control=bbr
	ip netns exec a sysctl -q net.ipv4.tcp_congestion_control=cubic
}

bridge() {
	set -e
	ip link add br0 type bridge
	ip link set br0 up
	ip link del br0
}

firewall() {
	set -e
	ip netns exec b iptables -A INPUT -p icmp -j REJECT
	if ip netns exec a ping -c 1 -W 1 10.9.0.2; then return 1; fi
	ip netns exec b iptables -F
	ip netns exec b iptables -A INPUT -p tcp --dport 9 -j DROP
	ip netns exec b iptables -A INPUT -p tcp -m quota --quota 1000 -j ACCEPT
	ip netns exec b iptables -A INPUT -p tcp -m connbytes --connbytes 1000: --connbytes-dir both --connbytes-mode bytes -j REJECT --reject-with tcp-reset
	ip netns exec b iptables -F
	ip netns exec b ip6tables -A INPUT -p tcp -j REJECT
	ip netns exec b ip6tables -F
}

ssh_between() {
	set -e
	ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
	cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
	ip netns exec b /usr/sbin/sshd
	sleep 0.5
	[ "$(ip netns exec a ssh -o StrictHostKeyChecking=no -o BatchMode=yes 10.9.0.2 'ip -br addr show vb' | grep -c 10.9.0.2)" = 1 ]
}

devices() {
	local loop
	set -e
	truncate -s 400M /tmp/disk
	loop=$(losetup -f --show /tmp/disk)
	mkfs.ext4 -q "$loop"
	mkdir -p /mnt/fs
	mount "$loop" /mnt/fs
	umount /mnt/fs
	losetup -d "$loop"
}

mapper() {
	local loop n
	set -e
	truncate -s 64M /tmp/disk2
	loop=$(losetup -f --show /tmp/disk2)
	n=$((64 << 11))
	printf '%s\n' "0 2048 linear $loop 0" "2048 8 error" "2056 $((n - 2056)) linear $loop 2056" | dmsetup create broken
	dd if=/dev/mapper/broken of=/dev/null bs=1M count=1
	if dd if=/dev/mapper/broken of=/dev/null bs=4k skip=256 count=1; then return 1; fi
	dmsetup remove broken
	for table in "0 $n flakey $loop 0 10 1" "0 $n delay $loop 0 5" "0 $n dust $loop 0 4096" "0 $n zero"; do
		echo "$table"
		dmsetup create x --table "$table"
		dmsetup remove x
	done
	losetup -d "$loop"
}

lvm() {
	local loop
	set -e
	truncate -s 256M /tmp/disk3
	loop=$(losetup -f --show /tmp/disk3)
	pvcreate -q "$loop"
	vgcreate -q vg "$loop"
	lvcreate -q -y -n plain -L 32M vg
	lvcreate -q -y -s -n snap -L 16M vg/plain
	lvcreate -q -y --type thin-pool -n pool -L 64M vg
	mkfs.ext4 -q /dev/vg/plain
	vgremove -q -y vg
	losetup -d "$loop"
}

raid() {
	local a b
	set -e
	truncate -s 64M /tmp/ra /tmp/rb
	a=$(losetup -f --show /tmp/ra)
	b=$(losetup -f --show /tmp/rb)
	mdadm --create /dev/md0 --run --level=1 --raid-devices=2 --metadata=1.2 "$a" "$b"
	mdadm --stop /dev/md0
	losetup -d "$a"
	losetup -d "$b"
}

drivers() {
	set -e
	modprobe nbd
	[ -b /dev/nbd0 ] && [ -b /dev/nullb0 ] && [ -c /dev/fuse ]
	modprobe zfs
}

symbols() { [ "$(grep -c . /proc/kallsyms)" -gt 20000 ] && grep -q ' zfs_ioc_send' /proc/kallsyms; }

namespaces() { unshare --user --map-root-user --mount --pid --net --fork true; }

tools() {
	local t missing=
	for t in nc.openbsd nc.traditional ncat busybox mbuffer pv zstd pigz socat strace tcpdump iperf3 \
		syncoid sanoid ddrescue ss ps fuser modprobe nbdkit; do
		command -v "$t" >/dev/null || missing+=" $t"
	done
	echo "missing:$missing"
	[ -z "$missing" ] && sanoid --version && syncoid --version
}

capture() {
	set -e
	timeout 5 tcpdump -i lo -c 1 -w /tmp/cap icmp &
	sleep 1
	ping -c 2 127.0.0.1
	wait $!
}

check 'zfs module and tools' zfs_version
check 'encrypted pool on tmpfs' pools
check 'zfs send -w | zfs receive' raw_send
check 'python3 libzfs_core' pyzfs
check 'channel program' channel_program
check 'raidz repairs a damaged disk' raidz
check 'export, import, destroy' export_pools
check 'network namespaces and veth' network
check 'netem, tbf, fq, htb, bbr' netem
check 'bridge' bridge
check 'iptables' firewall
check 'ssh between namespaces' ssh_between
check 'tcpdump' capture
check 'loop, ext4' devices
check 'device mapper' mapper
check 'lvm: snapshot, thin pool' lvm
check 'md raid1' raid
check 'nbd, null_blk, fuse, modprobe' drivers
check 'kallsyms' symbols
check 'user and pid namespaces' namespaces
check 'programs' tools
exit $((failures > 0))
