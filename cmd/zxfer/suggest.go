package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/sshexec"
)

// didYouMean is the first line of a hint, "" where there is nothing to suggest.
func didYouMean(near []string) string {
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?\n"
}

// flagsLike are the flags of a command that a misspelt one may have meant.
func flagsLike(cmd *cobra.Command, err error) (near []string) {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return nil
	}
	typed := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); len(letters) > 1 {
		typed = letters // -snapshot
	}
	typed, _, _ = strings.Cut(typed, "=")
	// What is near a name cobra knows, of verbs.
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && len(typed) > 1 {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	for _, name := range names.SuggestionsFor(typed) {
		near = append(near, "--"+name)
	}
	return near
}

// poolOrHost suggests to write a host as one, where what was taken for a pool of
// this host is none.
func poolOrHost(ctx context.Context, err error, shell string) error {
	var none *job.NoPool
	if !errors.As(err, &none) || !none.Local || !sshexec.Known(ctx, remoteShell(shell), none.Pool) {
		return err
	}
	return &fault.Error{Class: fault.ClassOf(err), Hint: didYouMean([]string{none.Pool + ":POOL"}) + fault.HintOf(err), Err: err}
}
