// Package decision decides what a run of a job does.
//
//   - A survey is the input before the transfers: the job, the state of earlier runs, and the listing of the source. It gives
//     the snapshots to take, the names of copies to change, and the conflicts of a plan.
//   - A run state is the input after them. Its decision lists the holds to move, and what to destroy on each side.
//   - A pair is a source dataset and its copy on a target.
//   - A side is the source or one target. A pruning destroys snapshots on a side, by a grid or because they no longer exist
//     on the source.
//
// The package is pure: the caller lists datasets, and changes them.
package decision
