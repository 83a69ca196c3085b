package main

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// tunHeader is that of struct virtio_net_hdr, which precedes each packet.
	// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/virtio_net.h
	tunHeader = 10
	// largestPacket is a packet with that header, in bytes.
	largestPacket = tunHeader + 1<<16
)

// tunDevice is the near end of a TUN device. It stays so when the device moves to
// another namespace.
// https://docs.kernel.org/networking/tuntap.html
type tunDevice struct{ fd int }

func (d *tunDevice) close() error { return unix.Close(d.fd) }

// openTun makes a TUN device in this namespace. It lasts until it is closed.
func openTun(name string) (*tunDevice, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		// From now on checksums are the reader's business, and segments come
		// as they left TCP: both concern the other end, which is a kernel too.
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	return &tunDevice{fd}, nil
}

// onWire is how many bytes the packets have that one from a device stands for.
func onWire(p []byte) int64 {
	n := int64(len(p) - tunHeader)
	if p[1] == 0 { // gso_type: VIRTIO_NET_HDR_GSO_NONE
		return n
	}
	// Fields are of the machine's byte order.
	headers, size := int64(binary.NativeEndian.Uint16(p[2:])), int64(binary.NativeEndian.Uint16(p[4:]))
	if size == 0 || n <= headers {
		return n
	}
	segments := (n - headers + size - 1) / size
	return n + (segments-1)*headers
}
