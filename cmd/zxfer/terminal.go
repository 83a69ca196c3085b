package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// terminalSize returns a function that tells the size of the terminal that w
// is, nil where it is none or one that cannot move its cursor.
func terminalSize(w io.Writer) func() (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0, 0
		}
		return columns, rows
	}
}

// colored tells that w is a terminal that shows colors, and that they are wanted.
// https://no-color.org
func colored(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && terminalSize(w) != nil }
