package transport

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Ports is a range of TCP ports, written "LOW-HIGH", or one port. Zero means any.
type Ports struct{ Low, High int }

// UnmarshalText parses a range of ports.
func (p *Ports) UnmarshalText(text []byte) error {
	from, to, isRange := strings.Cut(string(text), "-")
	if !isRange {
		to = from
	}
	low, errLow := strconv.ParseUint(from, 10, 16)
	high, errHigh := strconv.ParseUint(to, 10, 16)
	switch {
	case errLow != nil || errHigh != nil || low == 0:
		return errors.New("write LOW-HIGH, ports from 1 to 65535")
	case low > high:
		return errors.New("the first port is above the last")
	}
	*p = Ports{int(low), int(high)}
	return nil
}

// MarshalText formats a range for UnmarshalText.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p Ports) String() string {
	switch p.Low {
	case 0:
		return ""
	case p.High:
		return strconv.Itoa(p.Low)
	}
	return fmt.Sprintf("%d-%d", p.Low, p.High)
}
