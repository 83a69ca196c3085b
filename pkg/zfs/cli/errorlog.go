package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

// Requests to the kernel, and the places of their arguments in zfs_cmd_t. They are the same in
// OpenZFS 2.1 to 2.4. The kernel copies less than commandSize bytes.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ioctl.h (zfs_cmd_t)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (zfs_ioc_t)
const (
	iocErrorLog     = 0x5a20
	iocObjsetToName = 0x5a24

	commandSize   = 64 << 10
	commandList   = 4112 // zc_nvlist_dst: address of the list
	commandCount  = 4120 // zc_nvlist_dst_size: its entries, then the unused ones
	commandResult = 4144 // zc_value: name
	commandObject = 12656

	bookmarkSize = 32 // zbookmark_phys_t
)

// Limits of the error log, in entries. zpool status also starts with the first one.
const (
	firstErrorLog = 10_000
	maxErrorLog   = 1 << 20
)

// damagedBlocks reads the error log of a pool on this host from the kernel, because no command prints
// its block numbers.
func damagedBlocks(ctx context.Context, pool string) ([]zfs.DamagedBlocks, error) {
	type answer struct {
		blocks []zfs.DamagedBlocks
		err    error
	}
	got := make(chan answer, 1)
	go func() { // the kernel may block it
		var a answer
		a.blocks, a.err = readErrorLog(pool)
		got <- a
	}()
	select {
	case a := <-got:
		return a.blocks, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func readErrorLog(pool string) ([]zfs.DamagedBlocks, error) {
	dev, err := os.OpenFile("/dev/zfs", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read the error log: %w", err)
	}
	defer dev.Close()
	log, err := errorLog(dev, pool)
	if err != nil {
		return nil, fmt.Errorf("cannot read the error log: %w", err)
	}
	return zfs.CollectBlocks(log, func(objset uint64) string { return nameOfObjset(dev, pool, objset) })
}

// errorLog returns the entries of a pool's error log. The kernel fills the list from its end.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_pool.c (zpool_get_errlog)
func errorLog(dev *os.File, pool string) ([]zfs.ErrorEntry, error) {
	for n := uint64(firstErrorLog); ; n *= 8 {
		n = min(n, maxErrorLog)
		list := make([]byte, n*bookmarkSize)
		var pin runtime.Pinner
		pin.Pin(&list[0])
		cmd := newCommand(pool)
		binary.NativeEndian.PutUint64(cmd[commandList:], uint64(uintptr(unsafe.Pointer(&list[0]))))
		binary.NativeEndian.PutUint64(cmd[commandCount:], n)
		err := control(dev, iocErrorLog, cmd)
		pin.Unpin()
		switch {
		case errors.Is(err, syscall.ENOMEM) && n < maxErrorLog:
			continue
		case errors.Is(err, syscall.ENOMEM):
			return nil, fmt.Errorf("it has more than %d entries", maxErrorLog)
		case err != nil:
			return nil, err
		}
		unused := binary.NativeEndian.Uint64(cmd[commandCount:])
		if unused > n {
			return nil, fmt.Errorf("the kernel left %d of %d entries unused", unused, n)
		}
		var log []zfs.ErrorEntry
		for b := list[unused*bookmarkSize:]; len(b) > 0; b = b[bookmarkSize:] {
			word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
			log = append(log, zfs.ErrorEntry{Objset: word(0), Object: word(1), Level: int64(word(2)), Block: word(3)})
		}
		return log, nil
	}
}

// nameOfObjset returns the name of a dataset or snapshot, "" if it does not exist.
func nameOfObjset(dev *os.File, pool string, objset uint64) string {
	cmd := newCommand(pool)
	binary.NativeEndian.PutUint64(cmd[commandObject:], objset)
	if control(dev, iocObjsetToName, cmd) != nil {
		return ""
	}
	name, _, _ := bytes.Cut(cmd[commandResult:commandResult+zfs.MaxName+1], []byte{0})
	return string(name)
}

// newCommand returns a zfs_cmd_t for a pool.
func newCommand(pool string) []byte {
	cmd := make([]byte, commandSize)
	copy(cmd[:zfs.MaxName], pool)
	return cmd
}

func control(dev *os.File, request uintptr, cmd []byte) error {
	conn, err := dev.SyscallConn()
	if err != nil {
		return err
	}
	var number syscall.Errno
	if err := conn.Control(func(fd uintptr) {
		_, _, number = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&cmd[0])))
	}); err != nil {
		return err
	}
	if number != 0 {
		return number
	}
	return nil
}
