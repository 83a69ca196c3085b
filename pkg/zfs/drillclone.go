package zfs

import (
	"fmt"
	"path"
	"strings"
	"time"
)

// Drill clones are children of the pool's root dataset, outside of all copies and retention
// policies.
const (
	// DrillClonePrefix is the prefix of a drill clone's name.
	DrillClonePrefix = "zxfer-drill-"
	// DrillCloneProperty is the user property that holds the job of a drill clone. zxfer never
	// destroys a clone without it.
	DrillCloneProperty = "zxfer:drill"
	// ReadCloneMark is the value of DrillCloneProperty of a clone whose files a process reads. It is
	// not the name of a job.
	ReadCloneMark = "(read)"
)

// DrillCloneName returns the full name of a drill clone.
func DrillCloneName(pool, id string) string { return pool + "/" + DrillClonePrefix + id }

// IsDrillClone reports whether a dataset is a drill clone or a descendant of one.
func IsDrillClone(dataset string) bool {
	_, below, _ := strings.Cut(dataset, "/")
	return strings.HasPrefix(below, DrillClonePrefix)
}

// DrillClone is a request to create a drill clone.
type DrillClone struct {
	Snapshot string `json:"snapshot"`
	Job      string `json:"job"` // the job that needs it
	Writable bool   `json:"writable,omitempty"`
	// KeyFile holds the key of an encrypted snapshot whose key is not loaded. ZFS checks the
	// key without loading it.
	KeyFile string `json:"key_file,omitempty"`
	// Among limits the clones of these datasets and their descendants to MaxDrillClones. If it
	// is empty, there is no limit.
	Among []string `json:"among,omitempty"`
}

// MaxDrillClones is the largest number of drill clones of the datasets that one key may drill, and
// of read clones of a pool. A drill needs one at a time. The next drill destroys the clone of an interrupted one.
const MaxDrillClones = 16

// DrillClones selects the drill clones of a job, by the datasets whose snapshots were cloned.
type DrillClones struct {
	Job      string   `json:"job"`
	Datasets []string `json:"datasets"`
}

// DrillCommand is a command to run in a drill clone.
type DrillCommand struct {
	Clone string   `json:"clone"`
	Argv  []string `json:"argv"` // run without a shell
	// Environment holds "NAME=value" pairs. Each name starts with ZXFER_DRILL_.
	Environment []string      `json:"environment,omitempty"`
	Timeout     time.Duration `json:"timeout"`
	Writable    bool          `json:"writable,omitempty"`
	// KeyFile holds the key to load while the command runs, "" for none.
	KeyFile string `json:"key_file,omitempty"`
}

// Check returns an error if the command is invalid.
func (a DrillCommand) Check() error {
	switch {
	case len(a.Argv) == 0 || !path.IsAbs(a.Argv[0]):
		return fmt.Errorf("command %q is not an absolute path", a.Argv)
	case a.Timeout <= 0:
		return fmt.Errorf("invalid time limit %s for the command", a.Timeout)
	case a.KeyFile != "" && !path.IsAbs(a.KeyFile):
		return fmt.Errorf("key file %q is not an absolute path", a.KeyFile)
	}
	for _, e := range a.Environment {
		if !strings.HasPrefix(e, "ZXFER_DRILL_") || !strings.Contains(e, "=") {
			return fmt.Errorf("%q is not a variable for a drill command", e)
		}
	}
	_, err := ParseDataset(a.Clone)
	return err
}

// MaxDrillOutput is the number of bytes of a command's output that are kept.
const MaxDrillOutput = 4 << 10

// DrillResult is the outcome of a DrillCommand.
type DrillResult struct {
	Failure string `json:"failure,omitempty"` // "" = exit code 0
	Output  string `json:"output,omitempty"`  // last MaxDrillOutput bytes
}
