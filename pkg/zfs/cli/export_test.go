package cli

import "time"

// SetReadCloneAge replaces the age from which an unmounted read clone is a leftover.
func SetReadCloneAge(age time.Duration) (restore func()) {
	was := readCloneAge
	readCloneAge = age
	return func() { readCloneAge = was }
}
