// Package outcome names the result of a job, run or part of one, and combines results.
//
// Nouns:
//   - outcome: one word for a result, such as "done" or "refused"
//   - part: a dataset or stage whose outcome contributes to the total
//
// It is pure. Package fault derives the exit code from an error's class.
package outcome
