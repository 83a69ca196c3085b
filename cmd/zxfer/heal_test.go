package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
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

// TestHealJobArguments expects --job to choose a job of the file, and to refuse arguments and flags
// that would have no effect.
func TestHealJobArguments(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "jobs.toml")
	job := func(name, target string) string {
		return "[[job]]\nname = \"" + name + "\"\nsource = \"tank/home\"\n[job.snapshots]\nadopt = [\"*\"]\n" + target
	}
	require.NoError(t, os.WriteFile(file, []byte(job("near", "[[job.target]]\nname = \"t\"\nto = \"vault/home\"\n")+
		job("far", "[[job.target]]\nname = \"t\"\nto = \"backup1:vault/home\"\ntransfer = { rsh = \"ssh -v\" }\n")+job("alone", "[job.retention]\nlast = 2\n")), 0o600))
	request := func(name string) (*healOptions, error) {
		o := &healOptions{config: replicateOptions{file: file}, job: name}
		return o, o.request(&app{now: time.Now}, nil, true)
	}
	o, err := request("far")
	require.NoError(t, err)
	require.Equal(t, "far", o.req.Job)
	require.Len(t, o.req.Copies, 2, "all jobs of the datasets are locked")
	require.Equal(t, "ssh -v", o.req.Copies[1].RSH)
	_, err = request("alone")
	require.ErrorContains(t, err, `job "alone" has no target`)
	require.Contains(t, fault.HintOf(err), "zxfer heal tank/home HOST:COPY")
	_, err = request("other")
	require.ErrorContains(t, err, `there is no job "other"`)
	require.Contains(t, fault.HintOf(err), "near, far, alone")

	for want, args := range map[string][]string{
		"takes no arguments with --job":         {"--job", "near", "tank"},
		"requires POOL or DATASET":              {},
		"or --job JOB":                          {"--job", ""},
		"--streams has no effect with --job":    {"--job", "near", "--streams", "2"},
		"--trusted-link has no effect with --j": {"--job", "near", "--trusted-link"},
		"there is no job file":                  {"--job", "near", "-c", file + ".missing"},
	} {
		cmd := newHeal(&app{now: time.Now, stdout: io.Discard, stderr: io.Discard})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"-c", file}, args...))
		require.ErrorContains(t, cmd.Execute(), want, args)
	}
}
