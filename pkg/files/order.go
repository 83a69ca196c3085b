package files

import (
	"slices"
	"strings"
)

// compare orders paths as a walk comes by them: by folders, "a/b" before "a-b".
func compare(a, b string) int {
	if a == "." || b == "." { // the root is before all
		return strings.Compare(strings.TrimPrefix(a, "."), strings.TrimPrefix(b, "."))
	}
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}
