package zfs

import (
	"fmt"
	"path"
	"strings"
	"time"
)

// A clone that is made to look at, as in a drill, is beside all else that a pool has:
// directly below its root, where no copy's tree and no retention has it.
const (
	// AsidePrefix begins its name.
	AsidePrefix = "zxfer-drill-"
	// AsideProperty names the job that a clone was made for. Who finds one without it
	// leaves it alone.
	AsideProperty = "zxfer:drill"
)

// DrillCloneName is the name of a clone, beside all else, of what a pool has.
func DrillCloneName(pool, id string) string { return pool + "/" + AsidePrefix + id }

// IsDrillClone tells whether a dataset has such a name, or is below one that has.
func IsDrillClone(dataset string) bool {
	_, below, _ := strings.Cut(dataset, "/")
	return strings.HasPrefix(below, AsidePrefix)
}

// DrillClone is a clone to be made.
type DrillClone struct {
	Snapshot string `json:"snapshot"`
	Job      string `json:"job"` // that it is for
	Writable bool   `json:"writable,omitempty"`
	// KeyFile is to be the key of the snapshot, where that is encrypted and its key not
	// loaded. It is tried, and not loaded.
	KeyFile string `json:"key_file,omitempty"`
	// Among are datasets of which, and of what is below them, there may be MaxAsides clones
	// at a time; with none there is no bound.
	Among []string `json:"among,omitempty"`
}

// MaxDrillClones bounds the clones of what one key may drill: a drill has one at a time, and
// the next removes what one that was killed left.
const MaxDrillClones = 16

// DrillClones are the clones that were made for a job of snapshots of datasets.
type DrillClones struct {
	Job      string   `json:"job"`
	Datasets []string `json:"datasets"`
}

// DrillCommand is to be run in such a clone.
type DrillCommand struct {
	Clone string   `json:"clone"`
	Argv  []string `json:"argv"` // no shell reads it
	// Environment is "NAME=value"; the names begin with ZXFER_DRILL_.
	Environment []string      `json:"environment,omitempty"`
	Timeout     time.Duration `json:"timeout"`
	Writable    bool          `json:"writable,omitempty"`
	// KeyFile holds the clone's key, which is loaded meanwhile; "" = it is not.
	KeyFile string `json:"key_file,omitempty"`
}

// Check refuses what is none.
func (a DrillCommand) Check() error {
	switch {
	case len(a.Argv) == 0 || !path.IsAbs(a.Argv[0]):
		return fmt.Errorf("a command begins with an absolute path, and %q does not", a.Argv)
	case a.Timeout <= 0:
		return fmt.Errorf("a command has a time of %s to end", a.Timeout)
	case a.KeyFile != "" && !path.IsAbs(a.KeyFile):
		return fmt.Errorf("the key file %q is no absolute path", a.KeyFile)
	}
	for _, e := range a.Environment {
		if !strings.HasPrefix(e, "ZXFER_DRILL_") || !strings.Contains(e, "=") {
			return fmt.Errorf("%q is no variable for a command in a drill", e)
		}
	}
	_, err := ParseDataset(a.Clone)
	return err
}

// MaxDrillOutput bounds what is kept of what a command says, in bytes.
const MaxDrillOutput = 4 << 10

// DrillResult is what came of the command.
type DrillResult struct {
	Failure string `json:"failure,omitempty"` // "" = exit code 0
	Output  string `json:"output,omitempty"`  // the end of what it said
}
