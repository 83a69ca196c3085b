package replicate

import (
	"strings"

	"zxfer/pkg/zfs"
)

// Tag returns the tag of the holds of a job for a target.
func Tag(job, target string) string { return zfs.TagPrefix + job + ":" + target }

// JobOfTag returns the job of a hold tag, or false if the tag is not zxfer's.
func JobOfTag(tag string) (string, bool) {
	rest, ours := strings.CutPrefix(tag, zfs.TagPrefix)
	job, _, found := strings.Cut(rest, ":")
	return job, ours && found
}
