package transfer_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run at once than there are cores: most of them
// wait, for a slow sink, a limit or a stall.
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
