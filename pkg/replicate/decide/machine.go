package decide

// Machine is a state machine, for tests and documentation.
type Machine struct {
	Name           string
	States, Events []string
	// Next returns the next state. An error means that the event is refused.
	Next func(state, event string) (string, error)
}
