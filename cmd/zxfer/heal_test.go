package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
)

// TestHealFindsJobOfCopy names a copy and expects zxfer to find its job in the job
// file, since that job must not run at the same time. An unreadable job file is not an error
// here.
func TestHealFindsJobOfCopy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "my jobs.toml")
	request := func(named bool, args ...string) (*healOptions, error) {
		o := &healOptions{config: replicateOptions{file: file}}
		return o, o.request(&app{now: time.Now}, args, named)
	}
	_, err := request(true, "tank")
	require.ErrorContains(t, err, "my jobs.toml")
	o, err := request(false, "tank")
	require.NoError(t, err)
	require.Empty(t, o.req.Copies)

	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("[[job]]\nname = \"j\"\nsource = \"tank/home\"\n[job.snapshots]\nadopt = [\"*\"]\n[[job.target]]\nname = \"t\"\nto = \"backup1:vault/home\"\n")
	o, err = request(false, "tank/home", "backup1:vault/home")
	require.NoError(t, err)
	require.Equal(t, &endpoint.Endpoint{Host: "backup1", Name: "vault/home"}, o.req.Copy)
	require.Equal(t, "j", o.req.Copies[0].Job)
	require.NotNil(t, o.req.Lock)
	require.Empty(t, o.req.Flags)
	o, err = request(true, "tank/home")
	require.NoError(t, err)
	require.Equal(t, []string{"--config", file}, o.req.Flags)

	write("[[job]]\nwhat")
	_, err = request(false, "tank/home")
	require.Error(t, err)
	o, err = request(false, "tank/home", "backup1:vault/home")
	require.NoError(t, err)
	require.Error(t, o.lockErr, "unreadable job file")
	o = &healOptions{config: o.config}
	o.req.DryRun = true
	require.NoError(t, o.request(&app{now: time.Now}, []string{"tank/home", "backup1:vault/home"}, false))
	require.NoError(t, o.lockErr, "a dry run needs no lock")
}
