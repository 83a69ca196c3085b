package blockdev

import (
	"bufio"
	"fmt"
	"io"
	"slices"
)

// joined sorts ranges and joins those that touch.
func joined(ranges []Range) []Range {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b Range) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	var out []Range
	for _, r := range ranges {
		if n := len(out) - 1; n >= 0 && out[n].Start+out[n].Length >= r.Start {
			out[n].Length = max(out[n].Length, r.Start+r.Length-out[n].Start)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// WriteMapfile writes which parts of a device of size bytes could not be read,
// in the format of GNU ddrescue's map file: "+" is rescued, "-" a bad sector.
//
// https://www.gnu.org/software/ddrescue/manual/ddrescue_manual.html#Mapfile-structure
func WriteMapfile(w io.Writer, size int64, bad []Range) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# Mapfile. Created by zxfer\n# current_pos  current_status  current_pass\n0x%08X     +               1\n#      pos        size  status\n", size)
	at := int64(0)
	for _, r := range joined(bad) {
		if r.Start > at {
			fmt.Fprintf(b, "0x%08X  0x%08X  +\n", at, r.Start-at)
		}
		fmt.Fprintf(b, "0x%08X  0x%08X  -\n", r.Start, r.Length)
		at = r.Start + r.Length
	}
	if at < size {
		fmt.Fprintf(b, "0x%08X  0x%08X  +\n", at, size-at)
	}
	return b.Flush()
}
