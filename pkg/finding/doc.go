// Package finding defines the results of checks before a job starts.
//
// Nouns:
//   - finding: a fact about a plan, host, link or device that the user should know
//   - severity: its seriousness; a finding at fail level blocks the job
//   - remedy: a command or action that resolves the finding
//   - refusal: the error that blocking findings cause
//
// It is pure. Packages plan, preflight and device create findings; report shows them.
package finding
