package transport

import (
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
)

// Condition is a set of circumstances in which options have no effect.
type Condition uint

// The first three follow from Settings. Callers know the others.
const (
	OverSSH      Condition = 1 << iota // data takes the ssh connection
	ByNC                               // the other host runs no zxfer
	Uncompressed                       // compression is off
	OneHost                            // source and target are on one host
	NothingMoved                       // no data is moved
	NoRemoteHost                       // no remote host is involved
)

// RefuseIneffective returns an error for the first option that is set but has no effect in one
// of the cases.
func (w *Settings) RefuseIneffective(cases Condition, reason string) error {
	for _, id := range w.Ineffective(cases) {
		return ineffectiveError(id, reason)
	}
	return nil
}

// Ineffective returns the IDs of the options that are set but have no effect in one of the
// cases.
func (w *Settings) Ineffective(cases Condition) (ids []string) {
	for _, o := range Options(everywhere) {
		if o.IneffectiveIf&cases != 0 && o.given(w) != "" {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// Check returns all errors in the settings of a place that show without knowing the hosts. It
// normalizes values from a job file and checks their bounds, as flags do.
func (w *Settings) Check(at Place) []error {
	var errs []error
	for _, o := range Options(at) {
		given := o.given(w)
		if given == "" {
			continue
		}
		if err := o.Value(w).Set(given); err != nil {
			errs = append(errs, fault.Usagef("", "%s: %w", option.Name(o.ID, given), err))
		}
		for _, i := range w.conditions() {
			if o.IneffectiveIf&i.Condition != 0 && o.given(w) != "" {
				errs = append(errs, ineffectiveError(o.ID, i.reason))
			}
		}
	}
	for _, err := range []error{w.checkConsent(at), w.checkWindows()} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// checkConsent returns an error if the wire protects nothing and consent is missing, or the
// reverse.
func (w *Settings) checkConsent(at Place) error {
	needsConsent := w.Wire == Plain || w.Wire == NC
	switch {
	case needsConsent && !w.TrustedLink && at != Doctor: // a measurement moves no confidential data
		return fault.Usagef("if no one can read or modify data on the link, add {{trusted-link}}; otherwise omit {{wire}}",
			"%s requires {{trusted-link}}: data is neither encrypted nor authenticated", option.Name("wire", w.Wire))
	case w.TrustedLink && !needsConsent:
		return fault.Usagef("add {{wire plain}}, or omit {{trusted-link}}", "{{trusted-link}} has no effect without {{wire plain}} or {{wire nc}}")
	}
	return nil
}

// CheckHosts returns an error if the wire cannot connect the hosts. source and target report
// whether that host is the local one.
func (w *Settings) CheckHosts(source, target bool) error {
	switch {
	case w.Wire == NC && source == target:
		return fault.Usagef("run zxfer on one of the two hosts, or omit {{wire}}", "{{wire nc}} requires one local and one remote side")
	case w.Wire == SSH && !source && !target:
		return fault.Usagef("run zxfer on one of the two hosts, or omit {{wire}}", "{{wire ssh}} requires one local side")
	}
	return nil
}

// applicableCase is a condition that applies, with the reason for messages.
type applicableCase struct {
	Condition
	reason string
}

// conditions returns the conditions that follow from w.
func (w *Settings) conditions() []applicableCase {
	var out []applicableCase
	switch w.Wire {
	case SSH:
		out = append(out, applicableCase{OverSSH, "with {{wire ssh}}, which sends data through the remote shell"})
	case NC:
		out = append(out, applicableCase{ByNC, "with {{wire nc}}, which uses no zxfer on the remote host"})
	}
	if w.Compress == off {
		out = append(out, applicableCase{Uncompressed, "with {{compress off}}"})
	}
	return out
}

func ineffectiveError(id, reason string) error {
	return fault.Usagef("omit "+option.Name(id, ""), "%s has no effect %s", option.Name(id, ""), reason)
}
