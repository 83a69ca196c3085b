package device

import "strings"

// mounts are the mounted file systems that have a block device, with its
// kernel name.
func (v view) mounts() []Mount {
	var out []Mount
	for _, m := range parseMountinfo(v.text("proc/self/mountinfo")) {
		// btrfs gives a device number of its own; its source is a device.
		name := v.nameOf(m.number)
		if name == "" && strings.HasPrefix(m.source, "/") {
			name = v.nameOf(v.number(m.source))
		}
		if name != "" {
			out = append(out, Mount{Device: name, Point: m.point, Type: m.kind, ReadOnly: m.readOnly})
		}
	}
	return out
}

// mountLine is what is needed of a line of mountinfo.
type mountLine struct {
	number, point, kind, source string
	readOnly                    bool
}

// parseMountinfo reads /proc/self/mountinfo; lines that make no sense are
// left out. Whether a file system can be written to is an option of it, not
// of the mount: another mount of it may be writable.
// https://www.kernel.org/doc/html/latest/filesystems/proc.html, section 3.5
func parseMountinfo(s string) []mountLine {
	var out []mountLine
	for line := range strings.Lines(s) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 2 {
			continue
		}
		m := mountLine{number: f[2], point: unescape(f[4]), kind: g[0], source: unescape(g[1])}
		if len(g) > 2 {
			m.readOnly = g[2] == "ro" || strings.HasPrefix(g[2], "ro,")
		}
		out = append(out, m)
	}
	return out
}

// swaps are the paths that /proc/swaps lists.
func (v view) swaps() []string { return parseSwaps(v.text("proc/swaps")) }

// parseSwaps reads /proc/swaps: a headline, then lines that begin with a path.
func parseSwaps(s string) []string {
	var out []string
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "/") {
			out = append(out, unescape(f[0]))
		}
	}
	return out
}

// unescape undoes what the kernel writes for blanks and the like: seq_escape in
// fs/proc_namespace.c.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(s)
}
