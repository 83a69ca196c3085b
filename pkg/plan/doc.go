// Package plan decides how datasets get from a source to a target. It is pure: it runs nothing,
// and the same input gives the same plan. Its nouns:
//
//   - Request: the options that the user chose.
//   - State: the survey of both hosts, with a listing of each.
//   - Plan: the datasets to transfer in order, or conflicts.
//   - Dataset: the plan for one dataset; its Steps send one stream each.
//   - conflict: a finding that prevents the transfer and names both sides.
//   - chain: the streams that made a copy, all raw or all plain.
//   - base: the incremental source of a stream, common to both sides.
//   - final snapshot: the snapshot that the target has after the transfer.
//   - copy: a target dataset received from the source.
//   - restore: a transfer from a copy back to its original.
//   - Pair: two datasets that Compare matches by snapshot GUIDs.
//
// It does not query hosts, send streams or verify results; package job does.
package plan
