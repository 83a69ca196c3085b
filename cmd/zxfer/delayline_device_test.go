package main

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// tunHeader is the size of struct virtio_net_hdr, which precedes each packet.
	// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/virtio_net.h
	tunHeader = 10
	// largestPacket is the maximum size of a packet with that header, in bytes.
	largestPacket = tunHeader + 1<<16
)

// tunDevice is a TUN device. Its file descriptor remains valid after the device moves to
// another namespace.
// https://docs.kernel.org/networking/tuntap.html
type tunDevice struct{ fd int }

func (d *tunDevice) close() error { return unix.Close(d.fd) }

// openTun creates a TUN device in this namespace. Closing it removes the device.
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
		// The kernel now leaves out checksums and does not split TCP segments. The kernel at
		// the other end of the link accepts both.
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	return &tunDevice{fd}, nil
}

// onWire returns the number of bytes that a packet occupies on the wire. A packet that the
// kernel did not split counts as several packets.
func onWire(p []byte) int64 {
	n := int64(len(p) - tunHeader)
	if p[1] == 0 { // gso_type: VIRTIO_NET_HDR_GSO_NONE
		return n
	}
	// The fields have the machine's byte order.
	headers, size := int64(binary.NativeEndian.Uint16(p[2:])), int64(binary.NativeEndian.Uint16(p[4:]))
	if size == 0 || n <= headers {
		return n
	}
	segments := (n - headers + size - 1) / size
	return n + (segments-1)*headers
}
