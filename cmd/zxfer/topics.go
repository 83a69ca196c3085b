package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/option"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport"
)

// Help topics are commands without a function. zxfer help shows them.

const transportTopic = "transport"

// newTransportTopic returns the topic that lists the transport flags of all verbs.
func newTransportTopic() *cobra.Command {
	cmd := &cobra.Command{
		Use:   transportTopic,
		Short: "Flags for connections between hosts",
		Long: `send, restore, heal, dev and doctor accept these flags. A job file has the same
options in [job.transfer]. heal and dev do not accept --wire nc. doctor does not
accept ` + flagList(missing(transport.Doctor)) + ".",
	}
	flagGroup(cmd, "Flags", func(f *pflag.FlagSet) { transportFlags(f, &transport.Settings{}, transport.Send) })
	var values strings.Builder
	for _, o := range transport.Options(transport.Send) {
		for i, w := range o.Words {
			flag := ""
			if i == 0 {
				flag = "--" + o.ID
			}
			fmt.Fprintf(&values, "  %-12s %-6s %s\n", flag, w.Name, option.Flags(w.Meaning))
		}
	}
	annotate(cmd, valuesTitle, strings.TrimRight(values.String(), "\n"))
	return cmd
}

// missing returns the transport options of send that other verbs do not have.
func missing(at transport.Place) (ids []string) {
	for _, o := range transport.Options(transport.Send) {
		if o.Places&at == 0 {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func flagList(ids []string) string { return "--" + strings.Join(ids, ", --") }

// newChecksTopic returns the topic that lists the checks of package preflight.
func newChecksTopic() *cobra.Command {
	var lines strings.Builder
	for _, c := range preflight.Checks() {
		fmt.Fprintf(&lines, "\n  %-18s  %s", c.ID, c.Title)
	}
	cmd := &cobra.Command{
		Use:   "checks",
		Short: "Checks before a transfer and in doctor",
		Long: `doctor evaluates all checks. send, restore and dev evaluate the checks of
their transfer before they change anything, and refuse it if one fails.
--skip-check ID skips any of them except ` + strings.Join(unskippable(), " and ") + `.`,
	}
	annotate(cmd, checksTitle, strings.TrimPrefix(lines.String(), "\n"))
	return cmd
}

// unskippable returns the IDs of the checks that cannot be skipped.
func unskippable() (ids []string) {
	for _, c := range preflight.Checks() {
		if !preflight.Skippable(c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// newGrantsTopic returns the topic that lists the grants of a restricted key.
func newGrantsTopic() *cobra.Command {
	var lines strings.Builder
	for _, g := range authz.AllGrants() {
		fmt.Fprintf(&lines, "  %-14s  %s\n", g.Verb, g.Help)
	}
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "Grants of a restricted key",
		Long: `--allow VERB=DATASET grants a key an operation on DATASET and its descendants.
zxfer refuses and logs everything else. zxfer replicate authorize prints the
line for authorized_keys, which starts zxfer agent with these grants.

receive, restore and send let the client place holds and bookmarks, and release
holds. receive and send also let it destroy snapshots and bookmarks. With
--append-only, the client destroys neither, and releases only holds of jobs.
receive and restore let it discard partially received states.

The client can fill the pool. Set a quota on DATASET or, with rotate, on its
parent.`,
	}
	annotate(cmd, grantsTitle, lines.String()+"  "+fmt.Sprintf("%-14s  %s", statusGrant, "show job status of this host; no DATASET, no other grant"))
	return cmd
}
