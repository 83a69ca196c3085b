package main

import (
	"github.com/spf13/cobra"

	"zxfer/pkg/freeze/guard"
)

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
