package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport"
)

// Help of flags that several verbs have.
const (
	dryRunHelp    = "show what would be done, and change nothing"
	measureHelp   = "first measure, and estimate the transfer rate"
	skipCheckHelp = "skip check `ID` (zxfer help checks); repeatable"
	retriesHelp   = "retry `N` times after a lost connection"
	recursiveHelp = "include descendants"
	decryptHelp   = "decrypt data (default raw); needs loaded keys"
	firstHelp     = "send `HISTORY` to new targets: all, newest or fail"
	jsonHelp      = "print JSON"
	quietHelp     = "print only errors"
	allHelp       = "select all jobs"
	hostHelp      = "act as host `NAME` of the job file (default: this host)"
	stateDirHelp  = "keep records and locks in `DIRECTORY`"
	configHelp    = "read job file `FILE`"
	newConfigHelp = "write job file `FILE`"
	overwriteHelp = "replace existing files"
)

// transportFlags declares the flags of the transport options.
func transportFlags(f *pflag.FlagSet, w *transport.Settings, at transport.Place) {
	for _, o := range transport.Options(at) {
		v := o.Value(w)
		flag := f.VarPF(v, o.ID, o.Short, o.Usage)
		if v.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// transportGroup adds the transport flags to cmd, whose help refers to the topic for them.
func transportGroup(cmd *cobra.Command, w *transport.Settings, at transport.Place) {
	flagGroup(cmd, "Connection", func(f *pflag.FlagSet) { transportFlags(f, w, at) })
	for _, o := range transport.Options(at) {
		cmd.Flags().Lookup(o.ID).Annotations[topicKey] = []string{transportTopic}
	}
	completeTransport(cmd, at)
}

// completeTransport completes the values of these flags.
func completeTransport(cmd *cobra.Command, at transport.Place) {
	for _, o := range transport.Options(at) {
		words := make([]string, len(o.Words))
		for i, w := range o.Words {
			words[i] = cobra.CompletionWithDesc(w.Name, option.Flags(w.Meaning))
		}
		if len(words) > 0 {
			completeWords(cmd, o.ID, words...)
		}
	}
}

// checkTransport checks the transport options for two ends.
func checkTransport(w *transport.Settings, at transport.Place, source, target endpoint.Endpoint) error {
	if w.Wire != transport.NC && source.Host == target.Host {
		if err := w.RefuseIneffective(transport.OneHost, "if source and target are on the same host"); err != nil {
			return err
		}
	}
	for _, err := range w.Check(at) {
		return err
	}
	if w.Wire == transport.NC && (isDevice(source) || isDevice(target)) {
		return fault.Usagef("choose another --wire", "--wire nc cannot copy devices")
	}
	return w.CheckHosts(source.Local(), target.Local())
}

// refuseIneffective refuses the first of names that was set. because explains why it has no effect.
func refuseIneffective(flags *pflag.FlagSet, because string, names ...string) error {
	for _, n := range names {
		if f := flags.Lookup(n); f != nil && f.Changed && f.Value.String() != f.DefValue {
			return fault.Usagef("omit --"+n, "--%s has no effect %s", n, because)
		}
	}
	return nil
}

// checkSkipped refuses unknown check IDs, since a typo would silently skip nothing.
func checkSkipped(ids []string) error {
	for _, id := range ids {
		if !preflight.Skippable(id) {
			return fault.Usagef("zxfer help checks lists the checks", "--skip-check %q: there is no such check", id)
		}
	}
	return nil
}

// noArgs refuses all arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.Usagef(helpOf(cmd), "%s takes no arguments: %q", cmd.Name(), strings.Join(args, " "))
	}
	return nil
}

// readFile reads a file that the command line names.
func readFile(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		err = fault.Usagef("", "there is no file %s", name)
	}
	return text, err
}

// isDevice reports whether a device is named instead of a dataset.
func isDevice(e endpoint.Endpoint) bool { return strings.HasPrefix(e.Name, "/dev/") }

// timeOf parses a time as date(1) does.
func timeOf(ctx context.Context, text string) (time.Time, error) {
	out, err := exec.CommandContext(ctx, "date", "--date="+text, "+%s").Output()
	var failed *exec.ExitError
	switch {
	case strings.TrimSpace(text) == "":
		return time.Time{}, fault.Usagef("", "--at is empty")
	case errors.As(err, &failed):
		return time.Time{}, fault.Usagef("use the syntax of date(1): '2026-11-21 18:00', 'yesterday 18:00', '3 hours ago'",
			"--at: %s", strings.TrimSpace(string(failed.Stderr)))
	case err != nil:
		return time.Time{}, fmt.Errorf("--at: %w", err)
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("--at: date printed %q", out)
	}
	return time.Unix(seconds, 0), nil
}
