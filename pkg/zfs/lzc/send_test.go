package lzc

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// The helper's part of a stream, whole or not, and where it has none, zfs send's.
func TestSend(t *testing.T) {
	const open = `read line
p=$(echo "$line" | sed 's/.*"process":\([0-9]*\).*/\1/') n=$(echo "$line" | sed 's/.*"pipe":\([0-9]*\).*/\1/')
`
	const refused = `echo '{"error":{"failures":[{"class":"StreamIOError","errno":5,"message":"I/O error"}],"more":0}}'`
	for name, tt := range map[string]struct {
		helper, want string
		kind         zfs.Kind
	}{
		"whole":            {open + "printf helper >/proc/$p/fd/$n; echo '{\"ok\":null}'", "helper", ""},
		"fails midway":     {open + "printf hel >/proc/$p/fd/$n; " + refused, "hel", zfs.PoolFault},
		"dies midway":      {open + "printf hel >/proc/$p/fd/$n; exit 1", "hel", zfs.Killed},
		"fails at once":    {open + refused, "zfs send -i @a tank/a@b", ""},
		"dies at once":     {open + "exit 1", "zfs send -i @a tank/a@b", ""},
		"does not know it": {open + "echo KeyError >&2; exit 1", "zfs send -i @a tank/a@b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fakePython(t, tt.helper+"\ncat >/dev/null\n")
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "zfs"), []byte("#!/bin/sh\nprintf %s \"zfs $*\"\n"), 0o755))
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			c := started(t)
			src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: "tank/a", From: "@a", To: "b"})
			require.NoError(t, err)
			got, err := io.ReadAll(src)
			require.Equal(t, tt.want, string(got))
			if tt.kind == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, &zfs.Error{Kind: tt.kind})
				require.Equal(t, err, src.Cause(err))
			}
			require.NoError(t, src.Close())
		})
	}
}
