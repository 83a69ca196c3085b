package replicate

import (
	"cmp"
	"strings"
	"time"

	"zxfer/pkg/freeze"
	"zxfer/pkg/replicate/calendar"
)

// Freeze is an application to freeze on the source's host while snapshots of its datasets are
// taken.
type Freeze struct {
	freeze.Spec
	// Datasets are patterns of the application's datasets (see SelectsName); empty means all.
	Datasets []string `toml:"datasets,omitempty"`
	// Timeout is the maximum time that it stays frozen; 0 = 30 seconds.
	Timeout calendar.Duration `toml:"timeout,omitempty"`
	// OnFailure is "stop", which takes no snapshot if the freeze fails, or "continue", which takes
	// it anyway; "" = stop.
	OnFailure string `toml:"on_failure,omitempty"`
}

// Request returns the request to the host, with the default timeout filled in.
func (z *Freeze) Request() freeze.Spec {
	s := z.Spec
	s.Timeout = cmp.Or(time.Duration(z.Timeout), freeze.DefaultTimeout)
	return s
}

// Covers reports whether a dataset at or below the job's source belongs to the application.
func (z *Freeze) Covers(source, dataset string) bool {
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	return len(z.Datasets) == 0 || matchesAny(z.Datasets, below)
}
