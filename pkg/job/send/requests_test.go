package send

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/plan"
)

// sendRequest returns a request to send src/a and its descendants to dst.
func sendRequest(change func(*Request)) Request {
	req := Request{
		Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst"},
		Plan: plan.Request{Source: "src/a", Target: "dst", Recursive: true},
	}
	if change != nil {
		change(&req)
	}
	return req
}

// batch returns the same request as a Batch with its own survey.
func batch(t *testing.T, w *jobtest.World, change func(*Request)) Batch {
	t.Helper()
	l, err := w.List(t.Context(), hosts.ListQuery{Dataset: "src/a", Recursive: true, Versions: true})
	require.NoError(t, err)
	return Batch{Request: sendRequest(change), Survey: l}
}

// testEnds returns the local host and beta with these facts.
func testEnds(a, b hosts.Facts) *ends.Ends {
	return &ends.Ends{Source: ends.End{Conn: jobtest.Connect(nil, ""), Facts: a}, Target: ends.End{Conn: jobtest.Connect(nil, "beta"), Facts: b}}
}
