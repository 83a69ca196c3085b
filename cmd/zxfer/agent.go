package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"zxfer/pkg/agent"
	"zxfer/pkg/fault"
	"zxfer/pkg/freeze/guard"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
)

func newAgent(a *app) *cobra.Command {
	var id bool
	var r restriction
	cmd := &cobra.Command{
		Use:   "agent [FLAGS]",
		Short: "Serve zxfer on another host",
		Long: `Serve zxfer on another host, on standard input and output. zxfer starts an
agent through ssh on each remote host. In authorized_keys, --allow restricts a
key to an agent with these grants (zxfer help grants).`,
		Example: `  zxfer replicate authorize --allow receive=vault/web1 --append-only --key k.pub
      print a line for authorized_keys that starts a restricted agent`,
		Args:   noArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if id {
				self, err := sshexec.ThisBinary()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(a.stdout, idLine(self.ID))
				return err
			}
			if f, ok := a.stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				return fault.Usagef("zxfer send HOST:… starts the agent itself", "agent requires a pipe as standard input, not a terminal")
			}
			if err := r.check(); err != nil {
				return err
			}
			return serveAgent(cmd.Context(), a, &r)
		},
	}
	cmd.Flags().BoolVar(&id, "id", false, "print build ID, version and protocol, and exit")
	r.define(cmd)
	return cmd
}

func serveAgent(ctx context.Context, a *app, r *restriction) error {
	// A lost client must not kill the agent in mid-message (SIGPIPE): it finishes first. The
	// signal is caught, not ignored, because children inherit only ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// If the account always starts its agent, sshd passes the client's command here.
	s := &agent.Server{Version: buildVersion(), Note: buildNote(os.Getenv("SSH_ORIGINAL_COMMAND"))}
	local := hosts.NewLocal(buildVersion(), s.Log)
	s.Host = local
	if !r.given() {
		return s.Serve(ctx, a.stdin, a.stdout)
	}
	return r.serve(ctx, s, local, a)
}

func newFreezeGuard(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    guard.Verb,
		Short:  "Hold applications still while a snapshot is taken",
		Long:   guard.Verb + " is the watchdog that zxfer starts for the freezes of a job. It is not for typing.",
		Args:   noArgs,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return guard.Serve(a.stdin, a.stdout) },
	}
}
