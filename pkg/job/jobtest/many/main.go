// Command many sends many datasets, or many snapshots, between two pools of an in-memory host, for
// scripts/bench:
//
//	many DATASETS SNAPSHOTS
//
// It covers only the engine: survey, plan, checks, tiny streams and verification.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "many:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("unknown arguments %q", args)
	}
	datasets, err := strconv.Atoi(args[0])
	snapshots, serr := strconv.Atoi(args[1])
	if err := errors.Join(err, serr); err != nil {
		return err
	}
	w := world{newHost(datasets, snapshots)}
	defer w.Close()
	req := send.Request{
		Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/a"},
		Plan: plan.Request{Source: "src/a", Target: "dst/a", Recursive: true}, Parallel: 1,
	}
	report, err := send.Run(ctx, req, hosts.New(w), send.Quiet{})
	if err == nil && len(report.Results) < datasets {
		err = fmt.Errorf("%d of %d datasets arrived", len(report.Results), datasets)
	}
	return err
}

// newHost returns a host with datasets, each with the given number of snapshots.
func newHost(datasets, snapshots int) *hosts.Local {
	h := zfsmem.New("src", "dst")
	for i := range datasets {
		name := "src/a"
		if i > 0 {
			name += fmt.Sprintf("/%06d", i)
		}
		h.Create(name, nil)
	}
	h.Edit(func(all map[string]*zfs.Dataset) {
		guid := uint64(1 << 40)
		for name, d := range all {
			if name == "src" || name == "dst" {
				continue
			}
			for i := range snapshots {
				guid++
				d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprintf("s%06d", i), GUID: guid, CreateTXG: 1<<20 + uint64(i)})
			}
		}
	})
	return hosts.On(h, "test", func(string) {})
}

// world connects jobs to the host.
type world struct{ *hosts.Local }

func (w world) Open(context.Context, hosts.Address) (hosts.Host, error) { return w.Local, nil }
func (w world) Relay(context.Context, hosts.Address, string, func(error)) (string, error) {
	return "", errors.ErrUnsupported
}
