package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// unloadTimeout limits how long unloading a key is retried. The mount that used the key ends
// shortly after its last descriptor is closed.
const unloadTimeout = 10 * time.Second

// useKey loads the key of an encrypted dataset from keyFile if it is not loaded. unload unloads it
// when no other zxfer process uses it. It does not unload a key that a person loaded.
func (l *Local) useKey(ctx context.Context, dataset, keyFile string) (unload func() error, err error) {
	props, err := l.Properties(ctx, []string{dataset}, []string{"encryptionroot", "keystatus"})
	if err != nil {
		return nil, err
	}
	root, status := props[dataset]["encryptionroot"].Value, props[dataset]["keystatus"].Value
	locked := status == "unavailable"
	if locked && keyFile == "" {
		return nil, &zfs.Error{Kind: zfs.KeyMissing, Op: zfs.OpMount, Subject: dataset,
			Detail: "it is encrypted, and the key of " + root + " is not loaded",
			Hint:   remedy.MarkPrompt(remedy.Command("zfs", "load-key", root)) + ", or name a key file there"}
	}
	if keyFile == "" || !locked && status != "available" {
		return func() error { return nil }, nil
	}
	k, err := l.openKey(ctx, root)
	if !locked && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
		return func() error { return nil }, nil // whoever loaded it keeps it loaded, as if no file were named
	}
	if err != nil {
		return nil, fmt.Errorf("cannot share the key of %s: %w", root, err)
	}
	if err := k.start(ctx, keyFile); err != nil {
		return nil, errors.Join(err, k.file.Close())
	}
	return func() error { return k.finish(ctx) }, nil
}

// keyUse is one use of a key. All uses on a host lock the same file with their own descriptors, so
// a killed process releases its locks. The file has one byte while zxfer has loaded the key.
type keyUse struct {
	*Local
	root string
	file *os.File
}

// Offsets of the locked bytes. startLock is exclusive and covers start and end of a use. useLock is
// shared by all uses.
const (
	startLock = iota
	useLock
)

func (l *Local) openKey(ctx context.Context, root string) (*keyUse, error) {
	found, err := l.Properties(ctx, []string{root}, []string{"guid"})
	if err != nil {
		return nil, err
	}
	dir := l.tools.RunDirectory()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "key-"+filepath.Base(found[root]["guid"].Value))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	return &keyUse{l, root, f}, err
}

// lock sets the lock at an offset to F_UNLCK, F_RDLCK or F_WRLCK, without waiting.
func (k *keyUse) lock(offset int64, lockType int16) error {
	return unix.FcntlFlock(k.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: lockType, Whence: io.SeekStart, Start: offset, Len: 1})
}

// exclusively calls f while no other use starts or ends. It waits for the lock until ctx ends.
func (k *keyUse) exclusively(ctx context.Context, f func() error) error {
	for {
		err := k.lock(startLock, unix.F_WRLCK)
		if err == nil {
			return errors.Join(f(), k.lock(startLock, unix.F_UNLCK))
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// start loads the key if this is the first use, and shares it with others.
func (k *keyUse) start(ctx context.Context, file string) error {
	return k.exclusively(ctx, func() error {
		if k.lock(useLock, unix.F_WRLCK) == nil {
			if err := k.load(ctx, file); err != nil {
				_ = k.lock(useLock, unix.F_UNLCK) // as in filelock.Close
				return err
			}
		}
		return k.lock(useLock, unix.F_RDLCK)
	})
}

// load loads the key if it is not loaded. The caller is the only user, so an existing note is from
// a killed process.
func (k *keyUse) load(ctx context.Context, file string) error {
	props, err := k.Properties(ctx, []string{k.root}, []string{"keystatus"})
	if err = errors.Join(err, k.file.Truncate(0)); err != nil || props[k.root]["keystatus"].Value == "available" {
		return err
	}
	if err := k.tools.LoadKey(ctx, k.root, file); err != nil {
		return err
	}
	return k.file.Truncate(1)
}

// finish unloads the key if this is the last use, also after ctx was canceled.
func (k *keyUse) finish(ctx context.Context) error {
	defer k.file.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*unloadTimeout)
	defer cancel()
	return k.exclusively(ctx, func() error {
		// The next holder of startLock must not count this use.
		defer func() { _ = k.lock(useLock, unix.F_UNLCK) }() // closing the file unlocks, too
		if k.lock(useLock, unix.F_WRLCK) != nil {            // others use it
			return nil
		}
		st, err := k.file.Stat()
		if err != nil || st.Size() == 0 {
			return err
		}
		return errors.Join(k.unload(ctx), k.file.Truncate(0))
	})
}

func (k *keyUse) unload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, unloadTimeout)
	defer cancel()
	for {
		err := k.tools.UnloadKey(ctx, k.root)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("cannot unload the key of %s, which zxfer loaded to read it: %w", k.root, err)
		}
	}
}
