package decide

// receivedMachine returns the machine of ReceivedState.
func receivedMachine() Machine {
	return Machine{Name: "Dataset of a relay", States: []string{string(ReceivedNew), string(ReceivedNothing), string(ReceivedUnconfirmed)},
		Events: []string{string(SnapshotConfirmed), string(SnapshotUnconfirmed), string(OtherConfirmed), string(NoSnapshot)},
		Next: func(_, event string) (string, error) {
			return string(ReceivedAfter(ReceivedEvent(event))), nil
		}}
}
