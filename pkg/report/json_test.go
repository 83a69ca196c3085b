package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
)

// TestJSON compares JSON with the documented format in golden files. A change other than an
// addition breaks programs.
func TestJSON(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	c := newClock()
	j := NewJSON(Options{Stdout: &out, Stderr: &errs, Now: c.Now})
	r := finished()
	replay(j, c, r)
	j.Started(4, r.Plan.Datasets[3], 0)
	j.Status()
	require.NoError(t, j.Done(r, nil, nil))
	golden(t, "run.json", out.String())
	golden(t, "progress.jsonl", errs.String())
	for l := range strings.Lines(errs.String()) {
		var e Event
		require.NoError(t, json.Unmarshal([]byte(l), &e))
		require.Equal(t, ProgressSchema, e.Schema)
	}
}

func TestJSONRefused(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	j := NewJSON(Options{Stdout: &out, Stderr: &errs, Now: newClock().Now, Quiet: true})
	r := diverged()
	j.Planned(r)
	err := errors.Join(fault.Refusef("send elsewhere", "diverged"), errors.New("and more"))
	r.Error, r.Hint = err.Error(), fault.HintOf(err)
	require.NoError(t, j.Done(r, err, nil))
	golden(t, "refused.json", out.String())
	require.Equal(t, `{"schema":"zxfer.progress/v1","time":"2026-03-01T12:00:00Z","event":"error","message":"diverged","hint":"send elsewhere","class":"refused"}
{"schema":"zxfer.progress/v1","time":"2026-03-01T12:00:00Z","event":"error","message":"and more","class":"refused"}
`, errs.String())
}

// TestOptionsOnlyInTexts expects that text is scanned for options, and that names of
// devices are not.
func TestOptionsOnlyInTexts(t *testing.T) {
	t.Parallel()
	var out, errs, text bytes.Buffer
	r := &send.Report{Source: "{{wire nc}}", Target: "host:{{dial}}",
		Conclusion: outcome.Conclusion{Hint: "see\n{{wire nc}}", Error: "/srv/{{wire nc}}: none"},
		Plan:       &plan.Plan{Notes: []string{"a, \"b\"]", "{{dial}} is set"}}}
	err := fault.Refusef(r.Hint, "%s", r.Error)
	require.NoError(t, NewJSON(Options{Stdout: &out, Stderr: &errs, Now: newClock().Now}).Done(r, err, nil))
	var got send.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, []string{"{{wire nc}}", "host:{{dial}}", "see\n--wire nc", "/srv/{{wire nc}}: none", "a, \"b\"]", "--dial is set"},
		append([]string{got.Source, got.Target, got.Hint, got.Error}, got.Plan.Notes...))
	require.Contains(t, errs.String(), `"message":"/srv/{{wire nc}}: none","hint":"see\n--wire nc"`)

	Error(&text, err)
	require.Equal(t, "zxfer: /srv/{{wire nc}}: none\nhint: see\nhint: --wire nc\n", text.String())
	shown := datasetText(&plan.Dataset{Source: "{{wire nc}}", Target: "{{dial}}", Discard: "requested by {{no-resume}}"})
	require.Contains(t, shown, "{{wire nc}} -> {{dial}} ")
	require.Contains(t, shown, "receive: requested by --no-resume")
}

// TestJSONHasNoNulls expects that lists are never null, and the job's own report is not changed.
func TestJSONHasNoNulls(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &send.Report{Plan: &plan.Plan{Datasets: []*plan.Dataset{{Source: "tank/a"}}}}
	require.NoError(t, NewJSON(Options{Stdout: &out, Stderr: &bytes.Buffer{}}).Done(r, nil, nil))
	require.NotContains(t, out.String(), "null")
	require.Nil(t, r.Hosts)
	require.Nil(t, r.Plan.Datasets[0].Steps)
}
