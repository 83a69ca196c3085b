package device

import (
	"bufio"
	"fmt"
	"io"
)

// WriteMapfile writes a GNU ddrescue map of a device of size bytes. ddrescue can
// retry the bad ranges, which must be sorted and disjoint.
// https://www.gnu.org/software/ddrescue/manual/ddrescue_manual.html#Mapfile-structure
func WriteMapfile(w io.Writer, size int64, bad []Range) error {
	b := bufio.NewWriter(w)
	fmt.Fprint(b, "# Mapfile. Created by zxfer dev --skip-errors\n# current_pos  current_status  current_pass\n")
	fmt.Fprintf(b, "0x%08X     +               1\n#      pos        size  status\n", size)
	at := int64(0)
	row := func(to int64, status byte) {
		if to > at {
			fmt.Fprintf(b, "0x%08X  0x%08X  %c\n", at, to-at, status)
			at = to
		}
	}
	for _, r := range bad {
		row(r.Start, '+')
		row(r.Start+r.Length, '-')
	}
	row(size, '+')
	return b.Flush()
}
