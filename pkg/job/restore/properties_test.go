package restore

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
)

// hostileProperties are properties that a compromised source sets. The first value once added a
// row to the output of zfs list -H, which zfs-mount-generator reads at boot.
func hostileProperties() map[string]string {
	return map[string]string{
		"a:b":                             "x\ndst/a\t/root/.ssh\ton\toff\toff\ton\ton\toff\toff",
		"setuid":                          "on",
		"devices":                         "on",
		"exec":                            "on",
		"org.openzfs.systemd:required-by": "multi-user.target",
		"zxfer:job":                       "offsite",
		"zxfer:drill":                     "offsite",
		"com.sun:auto-snapshot":           "true",
		"org.zfsbootmenu:commandline":     "init=/bin/sh",
	}
}

// TestHostilePropertiesAreNotSet expects that properties of a hostile source or copy are not set on
// the target, however they arrive. The transfer succeeds and lists them.
func TestHostilePropertiesAreNotSet(t *testing.T) {
	t.Parallel()
	named := func(s *send.Request) { s.Plan.CarryNamed = []string{"a:b"} } // its value has several lines
	for name, run := range map[string]func(w *jobtest.World) (*send.Report, error){
		"send -p": func(w *jobtest.World) (*send.Report, error) {
			return send.Run(t.Context(), sendRequest(func(s *send.Request) { s.Plan.CarryProperties = true }), hosts.New(w), send.Quiet{})
		},
		"send --carry": func(w *jobtest.World) (*send.Report, error) {
			return send.Run(t.Context(), sendRequest(named), hosts.New(w), send.Quiet{})
		},
		"restore": func(w *jobtest.World) (*send.Report, error) {
			return Run(t.Context(), Request{Send: sendRequest(nil)}, hosts.New(w), send.Quiet{})
		},
		"restore --carry": func(w *jobtest.World) (*send.Report, error) {
			return Run(t.Context(), Request{Send: sendRequest(named)}, hosts.New(w), send.Quiet{})
		},
		"a job with carry": func(w *jobtest.World) (*send.Report, error) {
			l, err := w.List(t.Context(), hosts.ListQuery{Dataset: "src/a", Recursive: true, Versions: true})
			require.NoError(t, err)
			b := send.Batch{Request: sendRequest(func(s *send.Request) { s.Plan.CarryProperties = true }), Survey: l}
			res, err := send.RunBatch(t.Context(), b, hosts.New(w), send.Quiet{})
			for _, d := range res.Datasets {
				err = errors.Join(err, d.Err)
			}
			res.Report.Outcome = outcome.Done
			return res.Report, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
			for property, value := range hostileProperties() {
				w.Memory.Set("src/a", property, value)
			}
			w.Memory.Set("src/a", "atime", "off")
			r, err := run(w)
			require.NoError(t, err)
			require.Equal(t, outcome.Done, r.Outcome)
			require.Equal(t, "off", w.Memory.Get("dst/a", "atime"), "harmless properties arrive")
			notes := strings.Join(r.Plan.Notes, "\n")
			for property := range hostileProperties() {
				require.Empty(t, w.Memory.Get("dst/a", property), property)
				require.Contains(t, notes, property+" of src/a", property)
			}
			require.Contains(t, notes, "not set on the target: ")
			require.NotContains(t, notes, "/root/.ssh")
		})
	}
}

// TestRestoreLeavesLocalProperties expects that a restore keeps local properties of existing
// datasets. A missing dataset gets the properties that the copy may set.
func TestRestoreLeavesLocalProperties(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "src/a/b": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	for property, value := range map[string]string{"setuid": "on", "com.sun:auto-snapshot": "true", "atime": "off", "zxfer:job": "offsite"} {
		w.Memory.Set("src/a", property, value)
		w.Memory.Set("src/a/b", property, value)
	}
	mine := map[string]string{"setuid": "off", "com.sun:auto-snapshot": "false", "atime": "on", "zxfer:job": "mine", "mountpoint": "/mine", "readonly": "off"}
	for property, value := range mine {
		w.Memory.Set("dst/a", property, value)
	}
	req := sendRequest(func(s *send.Request) { s.Plan.Recursive = true })
	req.Target, req.Plan.Target = endpoint.Endpoint{Name: "dst/a"}, "dst/a"
	r, err := Run(t.Context(), Request{Send: req}, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	for property, value := range mine {
		require.Equal(t, value, w.Memory.Get("dst/a", property), property)
	}
	require.Equal(t, "off", w.Memory.Get("dst/a/b", "atime"))
	for _, property := range []string{"setuid", "com.sun:auto-snapshot", "zxfer:job"} {
		require.Empty(t, w.Memory.Get("dst/a/b", property), property)
		require.Contains(t, strings.Join(r.Plan.Notes, "\n"), property+" of src/a/b")
	}
}
