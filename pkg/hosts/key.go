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

	"zxfer/pkg/zfs"
)

// unloadWithin bounds how long a key is tried to be unloaded: the mount that used
// it is gone a moment after its last descriptor.
const unloadWithin = 10 * time.Second

// useKey loads the key of what is encrypted, where it is not loaded, from a file;
// unload undoes that when nobody else of zxfer uses it, and undoes nothing else.
func (l *Local) useKey(ctx context.Context, dataset, keyFile string) (unload func() error, err error) {
	have, err := l.Properties(ctx, []string{dataset}, []string{"encryptionroot", "keystatus"})
	if err != nil {
		return nil, err
	}
	root, status := have[dataset]["encryptionroot"].Value, have[dataset]["keystatus"].Value
	locked := status == "unavailable"
	if locked && keyFile == "" {
		return nil, &zfs.Error{Kind: zfs.KeyMissing, Op: zfs.OpMount, Subject: dataset,
			Detail: "it is encrypted, and the key of " + root + " is not loaded",
			Hint:   zfs.CommandLine([]string{"zfs", "load-key", root}) + ", there; or name the file there that has the key"}
	}
	if keyFile == "" || !locked && status != "available" {
		return func() error { return nil }, nil
	}
	k, err := l.openKey(ctx, root)
	if !locked && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
		return func() error { return nil }, nil // who loaded it keeps it, as where no file is named
	}
	if err != nil {
		return nil, fmt.Errorf("sharing the key of %s: %w", root, err)
	}
	if err := k.begin(ctx, keyFile); err != nil {
		return nil, errors.Join(err, k.notes.Close())
	}
	return func() error { return k.end(ctx) }, nil
}

// keyUse is one use of a key. All of a host lock the same file, each for itself,
// whatever process it is of: one that is killed holds nothing any more. The file
// has a byte while one of them, and no person, has loaded the key.
type keyUse struct {
	*Local
	root  string
	notes *os.File
}

// What is locked: the right to begin or end, which one has, and the use itself, which
// many share.
const (
	theGate = iota
	theUse
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

// lock changes how much of what this use holds: nothing, a share, or all.
func (k *keyUse) lock(what int64, much int16) error {
	return unix.FcntlFlock(k.notes.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: much, Whence: io.SeekStart, Start: what, Len: 1})
}

// alone calls f while no other begins or ends.
func (k *keyUse) alone(ctx context.Context, f func() error) error {
	for {
		err := k.lock(theGate, unix.F_WRLCK)
		if err == nil {
			return errors.Join(f(), k.lock(theGate, unix.F_UNLCK))
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

// begin has the key loaded, and shares that with others.
func (k *keyUse) begin(ctx context.Context, file string) error {
	return k.alone(ctx, func() error {
		if k.lock(theUse, unix.F_WRLCK) == nil {
			if err := k.load(ctx, file); err != nil {
				return err
			}
		}
		return k.lock(theUse, unix.F_RDLCK)
	})
}

// load loads the key, where it is not. Nobody else uses it: what was noted before is
// of those that were killed.
func (k *keyUse) load(ctx context.Context, file string) error {
	have, err := k.Properties(ctx, []string{k.root}, []string{"keystatus"})
	if err = errors.Join(err, k.notes.Truncate(0)); err != nil || have[k.root]["keystatus"].Value == "available" {
		return err
	}
	if err := k.tools.LoadKey(ctx, k.root, file); err != nil {
		return err
	}
	return k.notes.Truncate(1)
}

// end unloads the key, where this use is the last one: also when what needed it was
// given up.
func (k *keyUse) end(ctx context.Context) error {
	defer k.notes.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*unloadWithin)
	defer cancel()
	return k.alone(ctx, func() error {
		// The next at the gate must not take this use for one that goes on.
		defer func() { _ = k.lock(theUse, unix.F_UNLCK) }() // closing it does so, too
		if k.lock(theUse, unix.F_WRLCK) != nil {            // others share it
			return nil
		}
		st, err := k.notes.Stat()
		if err != nil || st.Size() == 0 {
			return err
		}
		return errors.Join(k.unload(ctx), k.notes.Truncate(0))
	})
}

func (k *keyUse) unload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, unloadWithin)
	defer cancel()
	for {
		err := k.tools.UnloadKey(ctx, k.root)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the key of %s, which was loaded to read from it, is still loaded: %w", k.root, err)
		}
	}
}
