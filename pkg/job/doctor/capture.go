package doctor

import (
	"encoding/json"
	"fmt"

	"golang.org/x/tools/txtar"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/remedy"
	"zxfer/pkg/sysinfo"
)

// Capture holds the captured facts of one host or of a planned transfer.
type Capture struct {
	Role string // source, target, or transfer
	Host string // "-" for a transfer
	Text []byte // in the format of txtar.Parse
}

// A transfer's archive has one file: the input of the checks without the hosts' facts. It
// contains names of datasets and snapshots, but no keys.
const (
	roleTransfer = "transfer"
	transferFile = "zxfer/transfer.json"
)

// EvaluateCaptures evaluates the checks on captured hosts and, if present, on a captured transfer between
// them. Its report equals a report of Run without measurements, except that commands for a remote host use ssh,
// even if another remote shell reached it.
func EvaluateCaptures(archives []Capture, req Request) (*Report, error) {
	r := &Report{Schema: Schema, Ceilings: []probe.Ceiling{}, Archives: archives}
	var in preflight.Input
	var ends []preflight.Host
	for _, a := range archives {
		var err error
		if a.Role == roleTransfer {
			in, err = transferOf(a)
		} else {
			var h preflight.Host
			h, err = hostOf(a)
			ends = append(ends, h)
		}
		if err != nil {
			return nil, fault.Usagef("zxfer doctor --capture FILE", "%w", err)
		}
	}
	if len(ends) == 0 {
		return nil, fault.Usagef("zxfer doctor --capture FILE", "the facts contain no host")
	}
	if source, target := ends[0], ends[len(ends)-1]; in.Source.Name == "" { // no transfer
		in.Source, in.Target = source, target
	} else {
		in.Source.System, in.Target.System = source.System, target.System
		r.Allow, r.Plan = preflight.Allow(in), plan.Commands(&in.Plan)
	}
	r.Findings = findings(in, req)
	r.Advice = (&forecast.Adviser{Findings: r.Findings}).Advice()
	return r, nil
}

func hostOf(a Capture) (preflight.Host, error) {
	root, err := txtar.FS(txtar.Parse(a.Text))
	if err != nil {
		return preflight.Host{}, fmt.Errorf("facts of %s: %w", a.Host, err)
	}
	s := sysinfo.ReadSystem(root)
	return preflight.Host{Name: a.Host, At: remoteAt(a.Host), ZFS: s.ZFS, Kernel: s.Kernel, System: &s}, nil
}

func transferOf(a Capture) (in preflight.Input, err error) {
	for _, f := range txtar.Parse(a.Text).Files {
		if f.Name == transferFile {
			err = json.Unmarshal(f.Data, &in)
		}
	}
	if err != nil {
		return in, fmt.Errorf("facts of the transfer: %w", err)
	}
	in.Source.At, in.Target.At = remoteAt(in.Source.Name), remoteAt(in.Target.Name)
	return in, nil
}

// remoteAt returns the host of a label for commands of remedies.
func remoteAt(label string) remedy.Host {
	if label == hosts.LocalName {
		return remedy.Host{}
	}
	return remedy.Host{Name: label}
}

// transferArchive captures the planned transfer that EvaluateCaptures evaluates.
func transferArchive(in preflight.Input) (Capture, error) {
	in.Source.System, in.Target.System = nil, nil
	text, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return Capture{}, fmt.Errorf("capture of the transfer: %w", err)
	}
	a := &txtar.Archive{Files: []txtar.File{{Name: transferFile, Data: append(text, '\n')}}}
	return Capture{Role: roleTransfer, Host: "-", Text: txtar.Format(a)}, nil
}
