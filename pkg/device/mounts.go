package device

import "strings"

// mounts returns the mounted file systems on block devices, with kernel names.
func (v view) mounts() []Mount {
	var out []Mount
	for _, m := range parseMountinfo(v.readText("proc/self/mountinfo")) {
		// btrfs has a virtual device number, but its source is a device.
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

// mountLine holds the parts of a mountinfo line that are used.
type mountLine struct {
	number, point, kind, source string
	readOnly                    bool
}

// parseMountinfo parses /proc/self/mountinfo and skips malformed lines. readOnly is
// the option of the file system, because another mount of it may be writable.
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

// swaps returns the paths in /proc/swaps.
func (v view) swaps() []string { return parseSwaps(v.readText("proc/swaps")) }

// parseSwaps parses /proc/swaps: a heading, then lines that start with a path.
func parseSwaps(s string) []string {
	var out []string
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "/") {
			out = append(out, unescape(f[0]))
		}
	}
	return out
}

// unescape decodes the kernel's escapes for white space: seq_escape in
// fs/proc_namespace.c.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(s)
}
