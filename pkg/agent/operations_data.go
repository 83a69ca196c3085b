package agent

import (
	"context"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

var opDigest = operation[hosts.ContentQuery, hosts.Digest]{
	name:    "digest",
	do:      withProgress(hosts.Digester.Digest),
	rule:    authz.Reads(authz.Digest),
	request: manyStreams,
	check:   func(_ hosts.ContentQuery, d *hosts.Digest) error { return hosts.CheckDigest(d) },
	long:    true,
}

// Digest calls the agent.
func (r *Remote) Digest(ctx context.Context, q hosts.ContentQuery, report func(transfer.Progress)) (hosts.Digest, error) {
	return query(ctx, r, opDigest, q, report)
}

var opOffer = operation[tcp.Offer, tcp.Ticket]{
	name:  "offer",
	do:    withAnswer(hosts.Mover.Offer),
	rule:  authz.Reads(authz.Offer),
	check: hosts.CheckTicket,
}

// Offer calls the agent.
func (r *Remote) Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error) {
	return query(ctx, r, opOffer, o, nil)
}

var opTransfer = operation[hosts.Task, hosts.Result]{
	name:    "transfer",
	do:      withProgress(hosts.Mover.Transfer),
	rule:    authz.Changes(authz.Transfer, authz.TransferNames),
	request: manyStreams,
	answer: func(t hosts.Task, _ int) int {
		switch t.Moves() {
		case "device":
			return 64 << 20 // list of unreadable ranges
		case "files":
			return 8 << 20
		}
		return 0
	},
	check:  hosts.CheckResult,
	long:   true,
	secret: true,
}

// Transfer calls the agent.
func (r *Remote) Transfer(ctx context.Context, t hosts.Task, report func(transfer.Progress)) (hosts.Result, error) {
	return query(ctx, r, opTransfer, t, report)
}

var opInspectDevice = operation[string, device.Facts]{
	name:  "inspect-device",
	do:    withAnswer(hosts.Devices.InspectDevice),
	check: hosts.CheckDevice,
}

// InspectDevice calls the agent.
func (r *Remote) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	return query(ctx, r, opInspectDevice, path, nil)
}

var opDeviceState = operation[device.Task, device.State]{
	name: "device-state",
	do: withAnswer(func(s hosts.Devices, ctx context.Context, t device.Task) (device.State, error) {
		state, err := s.DeviceState(ctx, t)
		state.Unusable = option.Flags(state.Unusable) // job files have no devices
		return state, err
	}),
	check: hosts.CheckDeviceState,
}

// DeviceState calls the agent.
func (r *Remote) DeviceState(ctx context.Context, t device.Task) (device.State, error) {
	return query(ctx, r, opDeviceState, t, nil)
}

var opDigestDevice = operation[device.DigestQuery, device.Digest]{
	name:  "digest-device",
	do:    withProgress(hosts.Devices.DigestDevice),
	check: hosts.CheckDeviceDigest,
	long:  true,
}

// DigestDevice calls the agent.
func (r *Remote) DigestDevice(ctx context.Context, q device.DigestQuery, report func(transfer.Progress)) (device.Digest, error) {
	return query(ctx, r, opDigestDevice, q, report)
}

var opReadFiles = operation[files.Query, files.Digest]{
	name: "read-files",
	do:   withProgress(hosts.FileReader.ReadFiles),
	rule: authz.Reads(authz.ReadFiles),
	answer: func(q files.Query, _ int) int {
		if q.Within == 0 {
			return files.Parts*budget.One + files.MaxProblems*(8<<10)
		}
		return 6 * maxAnswer
	},
	check: hosts.CheckFiles,
	long:  true,
}

// ReadFiles calls the agent.
func (r *Remote) ReadFiles(ctx context.Context, q files.Query, report func(transfer.Progress)) (files.Digest, error) {
	return query(ctx, r, opReadFiles, q, report)
}

var opCapture = operation[bool, []byte]{
	name:   "capture",
	do:     withAnswer(hosts.Measurer.Capture),
	rule:   authz.Reads(authz.DenyHostFacts[bool]),
	answer: func(bool, int) int { return 32 << 20 },
}

// Capture calls the agent.
func (r *Remote) Capture(ctx context.Context, brief bool) ([]byte, error) {
	return query(ctx, r, opCapture, brief, nil)
}

var opMeasure = operation[probe.Request, probe.Ceiling]{
	name:    "measure",
	do:      withAnswer(hosts.Measurer.Measure),
	request: manyStreams,
	check:   hosts.CheckCeiling,
	long:    true,
	secret:  true,
}

// Measure calls the agent.
func (r *Remote) Measure(ctx context.Context, q probe.Request) (probe.Ceiling, error) {
	return query(ctx, r, opMeasure, q, nil)
}
