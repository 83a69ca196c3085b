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
	var relay string
	var r restriction
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "The other end, started over ssh",
		Long: `agent is what zxfer starts on the other host through the remote shell. It speaks
zxfer's protocol on standard input and output, carries out what the other end
asks of this host, and ends when its input does. It is not for typing.

As the forced command of a key in authorized_keys, --allow restricts who has
the key: zxfer replicate authorize prints the line. What no --allow grants is
refused and logged, to the system's log (facility auth) or to the file of
--audit.

  receive=DATASET  receive into DATASET and below, never with a rollback; of a
                   stream only the snapshots are stored, no property, hold or
                   rename, and no dataset but the one that was asked for
  receive-rekey=DATASET
                   the same, and with --append-only raw streams may also replace
                   the key of an encrypted copy, as after zfs change-key
  restore=DATASET  as receive=; and what zxfer restore brought there, and nothing that
                   was there before, may be made writable and mounted, and take
                   its key from above where that is proved to be the same
  send=DATASET     read DATASET and what is below, and take snapshots there; of
                   encrypted datasets by raw streams only, digests included
  send-decrypted=DATASET
                   the same, and plain text of encrypted datasets too
  rotate=DATASET   rename DATASET, or what is below, to NAME.zxfer-TIME, which the
                   key then releases its holds of, and no more
  remove=DATASET   destroy what is below DATASET if all its snapshots are those that
                   the client names, only a job's hold is on them, and nothing is
                   below it, cloned or mounted; never with --append-only

All let the client place holds and bookmarks. Without --append-only they also
let it destroy snapshots and bookmarks there. A receive that was cut off can be
discarded in any case.`,
		Args: noArgs,
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
				return fault.Usagef("zxfer send starts it by itself", "agent speaks a protocol on its standard input, which is a terminal")
			}
			if err := r.check(relay != ""); err != nil {
				return err
			}
			if relay != "" {
				return sshexec.ServeRelay(cmd.Context(), relay, a.stdin, a.stdout)
			}
			return serveAgent(cmd.Context(), a, &r)
		},
	}
	cmd.Flags().BoolVar(&id, "id", false, "print the id of this build, its version and protocol, and exit")
	cmd.Flags().StringVar(&relay, "relay", "", "join standard input and output to the loopback address `ADDR:PORT`")
	r.define(cmd)
	return cmd
}

func serveAgent(ctx context.Context, a *app, r *restriction) error {
	// A lost client must not kill the agent in mid-message (SIGPIPE): it finishes first. The
	// signal is caught, not ignored, because children inherit only ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// If the account always starts its agent, sshd passes the client's command here.
	s := &agent.Server{Version: buildVersion(), Note: buildNote(os.Getenv("SSH_ORIGINAL_COMMAND"))}
	s.Site = hosts.NewLocal(buildVersion(), s.Log)
	if !r.given() {
		return s.Serve(ctx, a.stdin, a.stdout)
	}
	return r.serve(ctx, s, a)
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
