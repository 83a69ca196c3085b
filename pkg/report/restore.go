package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/plan"
)

// restoreText is what a restore does for a dataset besides moving its streams.
func restoreText(g *plan.RestoredOwner) string {
	if g == nil {
		return ""
	}
	var b strings.Builder
	if len(g.Unmount) > 0 {
		fmt.Fprintf(&b, "  first unmounts %s\n", oneLine(strings.Join(g.Unmount, ", ")))
	}
	var given []string
	for _, name := range slices.Sorted(maps.Keys(g.Set)) {
		given = append(given, name+"="+g.Set[name])
	}
	if len(g.Revert) > 0 {
		given = append(given, strings.Join(g.Revert, " and ")+" inherited or the default")
	}
	if len(given) > 0 {
		fmt.Fprintf(&b, "  in the end has %s\n", oneLine(strings.Join(given, ", ")))
	}
	if root := cmp.Or(g.Joins, g.Takes); root != "" {
		b.WriteString(joinsText(root, " again"))
	}
	if g.Mountpoint != "" {
		fmt.Fprintf(&b, "  mounts at %s\n", oneLine(g.Mountpoint))
	}
	return b.String()
}

// joinsText says where a dataset will take its key from.
func joinsText(root, again string) string {
	return fmt.Sprintf("  takes its key from %s%s\n", oneLine(root), again)
}
