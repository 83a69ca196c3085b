package replicate

import (
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

// standbyFaults returns an error for two standby jobs that are the reverse of each other: none would run. It
// ignores invalid addresses.
func (f *File) standbyFaults() (errs []error) {
	for i := range f.Jobs {
		j := &f.Jobs[i]
		from, err := endpoint.Parse(j.Source)
		if err != nil || !j.Standby {
			continue
		}
		for k := range j.Targets {
			to, err := endpoint.Parse(j.Targets[k].To)
			copied := endpoint.Endpoint{Host: to.Host, Name: j.Targets[k].CopyOf(from.Name, from.Name)}
			if err != nil || copied.Name == "" {
				continue
			}
			if r := f.FindReverse(copied, from); r != nil && r.Standby && j.Name < r.Name {
				errs = append(errs, fault.Usagef("delete standby = true from one of them", "jobs %q and %q are the reverse of each other, and both are standby: none runs", j.Name, r.Name))
			}
		}
	}
	return errs
}
