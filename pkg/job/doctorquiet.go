package job

import (
	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
)

// logOnly is the Reporter of a job that moves nothing.
type logOnly struct{ log func(string) }

func (l *logOnly) Log(message string)              { l.log(message) }
func (l *logOnly) Planned(*Report)                 {}
func (l *logOnly) Started(int, *plan.Dataset, int) {}
func (l *logOnly) Progress(int, meet.Progress)     {}
func (l *logOnly) Finished(id int, r *StepResult)  {}
