// Package send sends datasets between two hosts, for `zxfer send` and for the runs of jobs. Package restore sends with
// a Job.
//
// Nouns:
//   - request: the input of a command: Request, Batch
//   - report: its result, which --json prints
//   - reporter: receives the events of a running job, such as progress
//   - end: a host of the job with its facts; ends: source, target and the link between them (package ends)
//   - stage: a step of a job: survey, plan, admit, open, measure, move, verify (see ends.Stages)
//   - survey: the listings and facts of both hosts from which package plan plans
//   - finding: a result of the preflight checks; some block the job
//   - conflict: a reason of the planner to refuse a dataset or the request
//   - try: one attempt of a stream or copy; after an interruption a loop of package retry starts another one
//
// It decides order and retries only. Package plan decides the steps, preflight evaluates the checks,
// transport/connect moves the bytes, measure and forecast measure and predict rates, and replicate
// decides when jobs run.
package send
