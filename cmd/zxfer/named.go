package main

import (
	"errors"
	"os"

	"zxfer/pkg/fault"
)

// readNamed reads a file that the command line names.
func readNamed(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		err = fault.Usagef("", "there is no file %s", name)
	}
	return text, err
}
