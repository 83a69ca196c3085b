package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/preflight"
)

// ineffective refuses the first of names that was given: it has no effect, as
// because says.
func ineffective(flags *pflag.FlagSet, because string, names ...string) error {
	for _, n := range names {
		if f := flags.Lookup(n); f != nil && f.Changed && f.Value.String() != f.DefValue {
			return fault.Usagef("leave --"+n+" out", "--%s has no effect %s", n, because)
		}
	}
	return nil
}

// checkSkipped refuses ids that no check has: a slip must not pass over nothing
// in silence.
func checkSkipped(ids []string) error {
	for _, id := range ids {
		if !preflight.Skippable(id) {
			return fault.Usagef("docs/checks.md and zxfer doctor list the checks", "--skip-check %q: there is no such check", id)
		}
	}
	return nil
}

// noArgs refuses all arguments of a verb that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.Usagef(helpOf(cmd), "%s takes no arguments: %q", cmd.Name(), strings.Join(args, " "))
	}
	return nil
}
