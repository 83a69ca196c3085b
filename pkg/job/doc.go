// Package job runs the commands that send datasets between two hosts: send and batch. Packages below it run the other
// commands; restore sends with a Job.
//
// Nouns:
//   - request: the input of a command: Send, Batch
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
// transport/connect moves the bytes, job/measure and job/forecast measure and predict rates, and replicate
// decides when jobs run.
package job
