// Package retention decides which snapshots of a dataset a policy keeps.
//
//   - A grid is a policy: the newest snapshot of each of the newest hours, days, weeks …
//   - A point is a snapshot with its time.
//   - A history is what earlier runs learned of the snapshots of one dataset, so that forged dates displace nothing.
//   - A removal is the decision for one dataset, and a reason is why a snapshot is kept.
//
// The package is pure. It knows neither holds nor clones, and destroys nothing.
package retention
