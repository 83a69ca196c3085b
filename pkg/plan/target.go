package plan

import (
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// TargetName returns where a source dataset goes for a target as typed: a
// pool, or a name that ends in "/", receives the source's path below its
// pool; any other name is the target itself. Errors are of class fault.Usage.
func TargetName(source, typed string) (string, error) {
	name := strings.TrimSuffix(typed, "/")
	if name == "" {
		return "", fault.Usagef("name a pool or dataset", "the target %q names no dataset", typed)
	}
	if strings.HasSuffix(typed, "/") || !strings.Contains(typed, "/") {
		if _, below, ok := strings.Cut(source, "/"); ok {
			name += "/" + below
		}
	}
	return zfs.ParseDataset(name)
}

// targetOf maps a dataset at or below the source's root to its target.
func targetOf(source, root, targetRoot string) string {
	return targetRoot + strings.TrimPrefix(source, root)
}
