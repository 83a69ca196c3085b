package device

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
)

// needsWipefs skips a test that inspects a target again. Without wipefs, zxfer
// refuses targets with contents.
func needsWipefs(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("wipefs"); err != nil {
		t.Skip("no wipefs")
	}
}

// TestResumeOverOldContents expects that an interrupted copy onto a target with old contents
// resumes, like one onto a blank device. The old signatures are overwritten last, so resuming needs
// consent again.
func TestResumeOverOldContents(t *testing.T) {
	t.Parallel()
	needsWipefs(t)
	const block, size = 64 << 10, 128 * (64 << 10)
	for _, noVerify := range []bool{false, true} {
		t.Run("no verify "+strconv.FormatBool(noVerify), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			data := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
			require.NoError(t, os.WriteFile(from, data, 0o600))
			old := make([]byte, size)
			copy(old, "LUKS\xba\xbe\x00\x01")
			copy(old[168:], "0a0b0c0d-0000-4000-8000-000000000001")

			task := func(allow Allow, limit int64) Task {
				src, err := Inspect(t.Context(), from)
				require.NoError(t, err)
				dst, err := Inspect(t.Context(), to)
				require.NoError(t, err)
				require.Equal(t, "crypto_LUKS", dst.Signatures[0].Type)
				return Task{Source: src, Target: dst, Read: true, Write: true, Request: Request{Allow: allow,
					Options: Options{Options: transfer.Options{Block: block, BandLimit: limit}, NoVerify: noVerify}}}
			}
			consent := Allow{Overwrite: true, Confirm: strconv.Itoa(size)}
			// The copy must last longer than the interruption takes.
			testenv.Widen(t, 4*time.Second, func(lasts time.Duration) error {
				require.NoError(t, os.WriteFile(to, old, 0o600))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				_, err := Copy(ctx, task(consent, size/int64(lasts.Seconds())), nil, Streams{}, func(p transfer.Progress) {
					if p.Bytes >= 8*block {
						cancel()
					}
				})
				if err == nil {
					return errors.New("the copy was complete before it could be interrupted")
				}
				require.ErrorIs(t, err, context.Canceled)
				return nil
			})

			again := task(consent, 0)
			state, err := StateOf(again)
			require.NoError(t, err)
			require.Empty(t, state.Unusable)
			require.NotZero(t, state.Stored)
			require.False(t, state.Started, "the recognized signatures are not the copy's")
			_, err = Copy(t.Context(), task(Allow{}, 0), nil, Streams{}, nil)
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)

			res, err := Copy(t.Context(), again, nil, Streams{}, nil)
			require.NoError(t, err)
			require.Equal(t, state.Stored, res.Device.Resumed)
			got, err := os.ReadFile(to)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
		})
	}
}

// TestResumeInspectsTargetAgain expects that an interrupted copy inspects its target again when
// it opens it. If the target was formatted after planning, no block counts as present.
func TestResumeInspectsTargetAgain(t *testing.T) {
	t.Parallel()
	needsWipefs(t)
	const block, size = 64 << 10, 64 * (64 << 10)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data) // never fails
	require.NoError(t, os.WriteFile(from, data, 0o600))
	src, err := Inspect(t.Context(), from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, make([]byte, size), 0o600))
	planned, err := Inspect(t.Context(), to)
	require.NoError(t, err)
	task := Task{Source: src, Target: planned, Read: true, Write: true,
		Request: Request{Options: Options{Options: transfer.Options{Block: block}}}}

	// The interrupted copy stored one block in the middle.
	j, _, err := OpenJournal(src, planned, task.Options.BlockHash(), journalResume)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(j.path) })
	const middle = size / 2
	f, err := os.OpenFile(to, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(data[middle:middle+block], middle)
	require.NoError(t, err)
	require.NoError(t, j.Add(storedBlocks([]storedBlock{{middle / block, LeafHash(data[middle:middle+block], middle, size)}})))
	require.NoError(t, j.Close())
	task.Target, err = Inspect(t.Context(), to)
	require.NoError(t, err)
	state, err := StateOf(task)
	require.NoError(t, err)
	require.True(t, state.Started, "the plan needs no consent")

	theirs := append([]byte("LUKS\xba\xbe\x00\x01"), make([]byte, 160)...)
	theirs = append(theirs, "0a0b0c0d-0000-4000-8000-000000000001"...)
	_, err = f.WriteAt(theirs, 0)
	require.NoError(t, errors.Join(err, f.Close()))
	before, err := os.ReadFile(to)
	require.NoError(t, err)
	_, err = Copy(t.Context(), task, nil, Streams{}, nil)
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	after, err := os.ReadFile(to)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after), "the new contents are lost")
}

// TestStateWithOtherDigest expects that a resumed copy with another hash reports the
// mismatch. The blocks that it wrote need no consent.
func TestStateWithOtherDigest(t *testing.T) {
	t.Parallel()
	needsWipefs(t)
	const block, size = 64 << 10, 8 * (64 << 10)
	for _, quick := range []bool{false, true} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		data := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{3}).Read(data) // never fails
		require.NoError(t, os.WriteFile(from, data, 0o600))
		src, err := Inspect(t.Context(), from)
		require.NoError(t, err)
		half := append(make([]byte, block), data[block:size/2]...) // the first block is written last
		require.NoError(t, os.WriteFile(to, append(half, make([]byte, size/2)...), 0o600))
		dst, err := Inspect(t.Context(), to)
		require.NoError(t, err)
		options := func(quick bool) Task {
			return Task{Source: src, Target: dst, Read: true, Write: true,
				Request: Request{Options: Options{Options: transfer.Options{Block: block}, Quick: quick}}}
		}
		wasDirect, other := options(quick), options(!quick)
		j, _, err := OpenJournal(src, dst, wasDirect.Options.BlockHash(), journalResume)
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.Remove(j.path) })
		var stored []storedBlock
		for i := int64(1); i < 4; i++ {
			stored = append(stored, storedBlock{i, wasDirect.Options.BlockHash().Sum(data[i*block:(i+1)*block], i*block, size)})
		}
		require.NoError(t, j.Add(storedBlocks(stored)))
		require.NoError(t, j.Close())

		state, err := StateOf(other)
		require.NoError(t, err)
		require.Equal(t, wasDirect.Options.Digest(), state.Digest)
		require.Contains(t, option.Flags(state.Unusable), "; resume it with --digest "+state.Digest)
		require.True(t, state.Started)
		require.Zero(t, state.Stored)
		if quick {
			other.Options.Delta = true
		} else {
			other.Options.NoVerify = true
		}
		state, err = StateOf(other)
		require.NoError(t, err)
		require.Contains(t, option.Flags(state.Unusable), map[bool]string{true: "; resume it without --delta", false: "; resume it without --no-verify"}[quick])
		other = options(!quick)
		state, err = StateOf(wasDirect)
		require.NoError(t, err)
		require.Equal(t, State{Started: true, Stored: 3 * block}, state)

		res, err := Copy(t.Context(), other, nil, Streams{}, nil)
		require.NoError(t, err)
		require.Zero(t, res.Device.Resumed, "it started again")
		got, err := os.ReadFile(to)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
}

// TestStreamInspectsTargetAgain expects that neither a copy nor a stream overwrites a target that
// was put to use after planning.
func TestStreamInspectsTargetAgain(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	planned, err := Inspect(t.Context(), name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, []byte("somebody's"), 0o600))
	task := Task{Source: Facts{Path: Standard, Kind: KindStream}, Target: planned, Read: true, Write: true,
		Request: Request{Options: Options{Options: transfer.Options{Block: 64 << 10}}}}
	_, err = Copy(t.Context(), task, nil, Streams{In: strings.NewReader("the stream")}, nil)
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "somebody's", string(got))
}
