package transfer_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more tests in parallel than there are cores, because most of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		if err := flag.Set("test.parallel", "12"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
