package replicate

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/replicate/calendar"
)

// Fraction is a fraction in (0, 1], written as a percentage: "5%". 0 = not set.
type Fraction float64

func (s *Fraction) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseFloat(number, 64)
	if n /= 100; err != nil || !percent || !(n > 0 && n <= 1) {
		return fmt.Errorf("%q is not a share of the files; write 5%%, 0.5%% or 100%%", text)
	}
	*s = Fraction(n)
	return nil
}

// UnmarshalTOML accepts only strings.
func (s *Fraction) UnmarshalTOML(raw []byte) error { return calendar.UnmarshalString(raw, s) }

// MarshalText is the inverse of UnmarshalText.
func (s Fraction) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Fraction) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 6, 64) + "%" }

const day = 24 * time.Hour
