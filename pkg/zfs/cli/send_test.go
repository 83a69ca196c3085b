package cli_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// TestFailedSendCausesReceiverError expects that a failed zfs send is the cause of the
// receiver's error, and that otherwise the receiver's error is. After a snapshot that it could not
// send, zfs send -I continues in the middle of a record.
func TestFailedSendCausesReceiverError(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	// Runs no other program, because loading one on a busy machine may take longer than the grace
	// period.
	testenv.WriteProgram(t, filepath.Join(dir, "zfs"), "#!/bin/sh\necho \"$WARNING\" >&2\nwhile echo stream; do :; done\n")
	peer := &transfer.PeerError{Text: "the stream is not what was planned: got a record of type 1275955268, expected 0 to 10"}
	gate := &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Subject: "vault/a", Detail: peer.Text}
	cut := errors.New("connection lost")
	for _, tt := range []struct {
		warning   string
		err, want error
	}{
		{"warning: cannot send 'tank/a@b': signal received", peer, &zfs.Error{Kind: zfs.Killed}},
		{"warning: cannot send 'tank/a@b': signal received", gate, &zfs.Error{Kind: zfs.Killed}},
		{"warning: cannot send 'tank/a@b': Input/output error", gate, &zfs.Error{Kind: zfs.PoolFault}},
		{"warning: cannot send 'tank/a@b': Input/output error", cut, cut},
		{"warning: cannot send 'tank/a@b': Input/output error", nil, nil},
		{"a note", gate, gate},
		{"", peer, peer},
	} {
		t.Setenv("WARNING", tt.warning)
		c := cli.New(nil)
		src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: "tank/a", From: "@a", Through: []string{"b"}, To: "c"})
		require.NoError(t, err)
		b := make([]byte, 7)
		_, err = io.ReadFull(src, b)
		require.NoError(t, err)
		require.NoError(t, src.Close())
		require.ErrorIs(t, src.Cause(tt.err), tt.want)
		require.NoError(t, c.Close())
	}
}

// TestKilledSendCausesReceiverError kills zfs send, so the receiver gets an incomplete stream, which a
// corrective receive reports as damage. If this process ended zfs send after a failure of the
// receiver, zfs send is not the cause.
func TestKilledSendCausesReceiverError(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	short := &zfs.Error{Kind: zfs.PoolFault, Op: zfs.OpReceive, Subject: "tank/a", Detail: "corrective receive was not able to reconstruct the data needed for healing"}
	peer := &transfer.PeerError{Text: short.Error()}
	cut := errors.New("connection lost")
	for name, tt := range map[string]struct {
		script    string
		ended     bool // before the source is closed
		err, want error
	}{
		"killed, receiver error":  {"kill -KILL $$", true, short, &zfs.Error{Kind: zfs.Killed, Op: zfs.OpSend}},
		"killed, remote error":    {"kill -KILL $$", true, peer, &zfs.Error{Kind: zfs.Killed, Op: zfs.OpSend}},
		"killed, connection lost": {"kill -KILL $$", true, cut, cut},
		"receiver failed first":   {"while echo stream; do :; done", false, short, short},
		"receiver failed first, zfs send reports its end": {`while echo stream; do :; done
echo "warning: cannot send 'tank/a@c': ${reason:-Broken pipe}" >&2
exit 1`, false, short, short},
		"failed without an explanation": {"exit 1", true, short, short},
		"succeeded":                     {"exit 0", true, short, short},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.WriteProgram(t, filepath.Join(dir, "zfs"), "#!/bin/sh\ntrap '' PIPE\ntrap 'reason=\"signal received\"' TERM\necho stream\n"+tt.script+"\n")
			c := cli.New(nil)
			defer c.Close()
			src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: "tank/a", To: "c"})
			require.NoError(t, err)
			_, err = io.ReadFull(src, make([]byte, 7))
			require.NoError(t, err)
			if tt.ended {
				_, err := src.Read(make([]byte, 1)) // Read waits for the end
				require.Error(t, err)
			}
			require.NoError(t, src.Close())
			_ = src.Close() // callers may do so
			require.ErrorIs(t, src.Cause(tt.err), tt.want)
			if tt.want == tt.err {
				require.Equal(t, tt.err, src.Cause(tt.err))
			}
			require.Equal(t, errors.Is(tt.want, &zfs.Error{Kind: zfs.Killed}), errors.Is(src.Cause(tt.err), &zfs.Error{Kind: zfs.Killed}))
		})
	}
}
