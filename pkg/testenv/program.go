package testenv

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes an executable file that the test runs. It delays the start of other processes
// while the file is open: a child that inherits the open file would make the kernel refuse to run
// the program (ETXTBSY, "text file busy").
func WriteProgram[Text string | []byte](t testing.TB, path string, text Text) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(text), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
