// Package forecast predicts the rate of a transfer from measurements, and names its bottleneck and the
// change that helps most.
//
//   - ceiling: the measured rate of one part of a transfer (package probe)
//   - part: source, link or target
//   - machine: the CPUs that the parts on one kernel share
//   - advice: the most useful change, or why there is none
//
// It measures nothing: package job does.
package forecast
