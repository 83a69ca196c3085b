package transport

import (
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
)

// Condition is a set of circumstances in which options have no effect.
type Condition uint

// The first of these follow from a Way, the others are its user's to tell.
const (
	OverSSH      Condition = 1 << iota // data takes the way of the remote shell
	ByNC                               // no zxfer runs on the other host
	Uncompressed                       // nothing is compressed
	OneHost                            // source and target are on one host
	NothingMoved                       // nothing is moved
	NoRemoteHost                       // no other host is reached
)

// applicableCase is a case and what is said of it.
type applicableCase struct {
	Condition
	reason string
}

// conditions are the cases that follow from w.
func (w *Settings) conditions() []applicableCase {
	var out []applicableCase
	switch w.Wire {
	case SSH:
		out = append(out, applicableCase{OverSSH, "with {{wire ssh}}: data takes the way of the remote shell"})
	case NC:
		out = append(out, applicableCase{ByNC, "with {{wire nc}}, which uses no zxfer on the other host"})
	}
	if w.Compress == off {
		out = append(out, applicableCase{Uncompressed, "with {{compress off}}"})
	}
	return out
}

// RefuseIneffective refuses the first option that was given although it has no effect in
// one of some cases, as because says.
func (w *Settings) RefuseIneffective(cases Condition, reason string) error {
	for _, id := range w.Ineffective(cases) {
		return ineffectiveError(id, reason)
	}
	return nil
}

// Ineffective are the options that were given although they have no effect in one of some
// cases.
func (w *Settings) Ineffective(cases Condition) (ids []string) {
	for _, o := range Options(everywhere) {
		if o.IneffectiveIf&cases != 0 && o.given(w) != "" {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func ineffectiveError(id, reason string) error {
	return fault.Usagef("leave "+option.Name(id, "")+" out", "%s has no effect %s", option.Name(id, ""), reason)
}

// Check are all that is wrong with what was given, at one place, as far as it
// shows without knowing the ends. What a file has is brought into the form and
// bounds that a flag gives it.
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
	if err := w.checkConsent(at); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// checkConsent tells whether who gave the way knows what it does not protect.
func (w *Settings) checkConsent(at Place) error {
	needsConsent := w.Wire == Plain || w.Wire == NC
	switch {
	case needsConsent && !w.TrustedLink && at != Doctor: // which moves nothing that anybody may not read
		return fault.Usagef("add {{trusted-link}} if nobody can read or change data on the link, or leave {{wire}} out",
			"%s needs {{trusted-link}}: bytes cross unencrypted and unauthenticated", option.Name("wire", w.Wire))
	case w.TrustedLink && !needsConsent:
		return fault.Usagef("add {{wire plain}}, or leave {{trusted-link}} out", "{{trusted-link}} has no effect without {{wire plain}} or {{wire nc}}")
	}
	return nil
}

// CheckHosts refuses a wire that cannot join two hosts, of which source and target
// tell whether they are this one.
func (w *Settings) CheckHosts(source, target bool) error {
	switch {
	case w.Wire == NC && source == target:
		return fault.Usagef("run zxfer on one of the two hosts, or leave {{wire}} out", "{{wire nc}} is between this host and another one")
	case w.Wire == SSH && !source && !target:
		return fault.Usagef("run zxfer on one of the two hosts, or leave {{wire}} out", "{{wire ssh}} needs one end on this host")
	}
	return nil
}
