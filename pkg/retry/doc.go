// Package retry repeats operations that failed for a cause that may pass.
//
//   - Loop: an operation and its policy: which errors another try may cure, how often, after which pause
//   - try: one call of the operation
//   - progress: part of the work that a failed try has done
//
// It does not know what is retried. The callers decide which errors are transient.
package retry
