package restore

import (
	"zxfer/pkg/endpoint"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
)

// sendRequest returns a request to send src/a and its descendants to dst.
func sendRequest(change func(*send.Request)) send.Request {
	req := send.Request{
		Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst"},
		Plan: plan.Request{Source: "src/a", Target: "dst", Recursive: true},
	}
	if change != nil {
		change(&req)
	}
	return req
}
