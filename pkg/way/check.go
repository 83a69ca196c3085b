package way

import (
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
)

// Case is a set of circumstances in which options have no effect.
type Case uint

// The first of these follow from a Way, the others are its user's to tell.
const (
	OverSSH      Case = 1 << iota // data takes the way of the remote shell
	ByNC                          // no zxfer runs on the other host
	Uncompressed                  // nothing is compressed
	OneHost                       // source and target are on one host
	Still                         // nothing is moved
	Alone                         // no other host is reached
)

// idle is a case and what is said of it.
type idle struct {
	Case
	because string
}

// idle are the cases that follow from w.
func (w *Way) idle() []idle {
	var out []idle
	switch w.Wire {
	case SSH:
		out = append(out, idle{OverSSH, "with {{wire ssh}}: data takes the way of the remote shell"})
	case NC:
		out = append(out, idle{ByNC, "with {{wire nc}}, which uses no zxfer on the other host"})
	}
	if w.Compress == off {
		out = append(out, idle{Uncompressed, "with {{compress off}}"})
	}
	return out
}

// Useless refuses the first option that was given although it has no effect in
// one of some cases, as because says.
func (w *Way) Useless(cases Case, because string) error {
	for _, id := range w.Idle(cases) {
		return useless(id, because)
	}
	return nil
}

// Idle are the options that were given although they have no effect in one of some
// cases.
func (w *Way) Idle(cases Case) (ids []string) {
	for _, o := range Options(everywhere) {
		if o.Idle&cases != 0 && o.given(w) != "" {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func useless(id, because string) error {
	return fault.Usagef("leave "+option.Name(id, "")+" out", "%s has no effect %s", option.Name(id, ""), because)
}

// Faults are all that is wrong with what was given, at one place, as far as it
// shows without knowing the ends. What a file has is brought into the form and
// bounds that a flag gives it.
func (w *Way) Faults(at At) []error {
	var errs []error
	for _, o := range Options(at) {
		given := o.given(w)
		if given == "" {
			continue
		}
		if err := o.Value(w).Set(given); err != nil {
			errs = append(errs, fault.Usagef("", "%s: %w", option.Name(o.ID, given), err))
		}
		for _, i := range w.idle() {
			if o.Idle&i.Case != 0 && o.given(w) != "" {
				errs = append(errs, useless(o.ID, i.because))
			}
		}
	}
	if err := w.consented(at); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// consented tells whether who gave the way knows what it does not protect.
func (w *Way) consented(at At) error {
	trusting := w.Wire == Plain || w.Wire == NC
	switch {
	case trusting && !w.TrustedLink && at != Doctor: // which moves nothing that anybody may not read
		return fault.Usagef("add {{trusted-link}} if nobody can read or change data on the link, or leave {{wire}} out",
			"%s needs {{trusted-link}}: bytes cross unencrypted and unauthenticated", option.Name("wire", w.Wire))
	case w.TrustedLink && !trusting:
		return fault.Usagef("add {{wire plain}}, or leave {{trusted-link}} out", "{{trusted-link}} has no effect without {{wire plain}} or {{wire nc}}")
	}
	return nil
}

// Between refuses a wire that cannot join two hosts, of which source and target
// tell whether they are this one.
func (w *Way) Between(source, target bool) error {
	switch {
	case w.Wire == NC && source == target:
		return fault.Usagef("run zxfer on one of the two hosts, or leave {{wire}} out", "{{wire nc}} is between this host and another one")
	case w.Wire == SSH && !source && !target:
		return fault.Usagef("run zxfer on one of the two hosts, or leave {{wire}} out", "{{wire ssh}} needs one end on this host")
	}
	return nil
}
