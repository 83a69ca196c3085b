package hosts

import (
	"context"

	"zxfer/pkg/zfs"
)

// Arrived describes a dataset after a stream into it, for verification.
type Arrived struct {
	GUID     uint64 `json:"guid,string"` // of the last snapshot
	CanMount string `json:"canmount"`    // of the dataset
	ReadOnly string `json:"readonly"`
}

// addArrived sets Arrived, if the target end asks for it. A failure leaves it nil: the caller then lists
// the target.
func (l *Local) addArrived(ctx context.Context, to To, res *Result) {
	r, ok := to.(ReceiveStream)
	if !ok || !r.Report || len(r.Spec.Arrival.Snapshots) == 0 {
		return
	}
	last := r.Spec.Arrival.Snapshots[len(r.Spec.Arrival.Snapshots)-1]
	name := r.Spec.Target + "@" + last.Name
	found, err := l.Properties(ctx, []string{r.Spec.Target, name}, []string{"guid", "canmount", "readonly"})
	if err != nil || found[r.Spec.Target] == nil || found[name] == nil {
		return
	}
	if guid, err := zfs.ParseGUID(found[name]["guid"].Value); err == nil {
		dataset := found[r.Spec.Target]
		res.Arrived = &Arrived{GUID: guid, CanMount: dataset["canmount"].Value, ReadOnly: dataset["readonly"].Value}
	}
}
