package restore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
)

// filesWorld returns a world whose src/a@x has some files.
func filesWorld(t *testing.T) (w *jobtest.World, dir string) {
	t.Helper()
	w = jobtest.NewWorld(t, map[string][]string{"src/a": {"w", "x"}})
	dir = t.TempDir()
	for name, text := range map[string]string{"alice/one": "1", "alice/sub/two": "22", "bob": "333"} {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
	w.Memory.SetFiles("src/a@x", dir)
	return w, dir
}

type silentFiles struct{}

func (silentFiles) Log(string)                                {}
func (silentFiles) Activity(string) func()                    { return func() {} }
func (silentFiles) FilesPlanned(*FilesReport)                 {}
func (silentFiles) FilesStarted(*FilesReport, uint64)         {}
func (silentFiles) Progress(int, connect.Progress)            {}
func (silentFiles) FilesFinished(*FilesReport, uint64, error) {}

func filesRequest(to string, change func(*Files)) Files {
	req := Files{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: to}, Paths: []string{"alice", "bob"}, Retries: 2}
	if change != nil {
		change(&req)
	}
	return req
}

func TestRestoreFiles(t *testing.T) {
	t.Parallel()
	w, dir := filesWorld(t)
	to := filepath.Join(t.TempDir(), "new")
	run := func(change func(*Files)) (*FilesReport, error) {
		return RunFiles(t.Context(), filesRequest(to, change), hosts.New(w), silentFiles{})
	}
	r, err := run(func(f *Files) { f.DryRun = true })
	require.NoError(t, err)
	require.Equal(t, "src/a@x", r.Snapshot, "the newest")
	require.EqualValues(t, 5, r.Plan.New)
	require.EqualValues(t, 6, r.Plan.Bytes)
	require.Equal(t, "planned", r.Outcome)
	require.NoDirExists(t, to)

	r, err = run(nil)
	require.NoError(t, err)
	require.Equal(t, "done", r.Outcome)
	require.EqualValues(t, 5, r.Result.New)
	require.FileExists(t, to+"/alice/sub/two")

	r, err = run(nil)
	require.NoError(t, err)
	require.Equal(t, "up-to-date", r.Outcome)

	require.NoError(t, os.WriteFile(to+"/bob", []byte("mine"), 0o600))
	r, err = run(nil)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "1 different file exists: bob")
	require.Equal(t, "refused", r.Outcome)
	r, err = run(func(f *Files) { f.Overwrite = true })
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Result.Replaced)
	text, err := os.ReadFile(to + "/bob")
	require.NoError(t, err)
	require.Equal(t, "333", string(text))

	_, err = run(func(f *Files) { f.Paths = []string{"carol"} })
	require.ErrorContains(t, err, "carol in src/a@x: no such file")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.NoError(t, os.Remove(dir+"/bob"))
	_, err = run(func(f *Files) { f.Source.Name = "src/a@w" })
	require.ErrorContains(t, err, "src/a@w")
}

// cuttingHost interrupts transfers of contents shortly after their start.
type cuttingHost struct {
	*jobtest.World
	cuts int
}

func (c *cuttingHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return c, nil }

func (c *cuttingHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, c.World, r, hoststest.Watched(hosts.OpTransfer, c.Transfer))
}

func (c *cuttingHost) Transfer(ctx context.Context, t hosts.Task, progress func(transfer.Progress)) (hosts.Result, error) {
	to, ok := t.To.(hosts.ReceiveFiles)
	if !ok || to.Into.DryRun || c.cuts == 0 {
		return c.World.Transfer(ctx, t, progress)
	}
	c.cuts--
	from := t.From.(hosts.SendFiles)
	from.Archive.Paths = from.Archive.Paths[:1] // the rest does not arrive
	t.From = from
	r, err := c.World.Transfer(ctx, t, nil)
	if err != nil {
		return hosts.Result{}, err
	}
	r.Files.Problems, r.Files.Failed = []files.Problem{{Path: "alice/one", Why: "cannot set its owner"}}, 1
	return r, fmt.Errorf("%w: in the middle", tcp.ErrConnectionLost)
}

func TestRestoreFilesResumes(t *testing.T) {
	t.Parallel()
	w, _ := filesWorld(t)
	to := t.TempDir()
	r, err := RunFiles(t.Context(), filesRequest(to, nil), hosts.New(&cuttingHost{World: w, cuts: 1}), silentFiles{})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "a file of the first try differs")
	require.ErrorContains(t, err, "1 file was not restored correctly")
	require.Equal(t, "alice/one", r.Result.Problems[0].Path)
	require.EqualValues(t, 5, r.Result.New, "of both tries")
	require.EqualValues(t, 6, r.Result.Bytes)
	require.FileExists(t, to+"/bob")

	to = t.TempDir()
	_, err = RunFiles(t.Context(), filesRequest(to, func(f *Files) { f.Retries = 0 }), hosts.New(&cuttingHost{World: w, cuts: 1}), silentFiles{})
	require.Equal(t, fault.Interrupted, fault.ClassOf(err))
	r, err = RunFiles(t.Context(), filesRequest(to, nil), hosts.New(w), silentFiles{})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Result.New)
	require.EqualValues(t, 2, r.Result.Same)
}
