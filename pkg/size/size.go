// Package size parses and formats sizes. It does not limit them: package option does.
//
//   - Size: a number of bytes, or of bytes per second. Its text form is exact.
//   - Text, Rate: rounded forms for people, which cannot be parsed.
package size

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// forms lists the accepted forms, for errors and help.
const forms = "bytes, or a number with a unit: 64K or 64KiB (1024), 64KB (1000); also M, G, T"

// Parse parses a size in bytes: a decimal number with an optional unit as in dd. K
// and KiB are 1024 bytes, KB is 1000, and so on for M, G and T. Case does not
// matter.
func Parse(s string) (Size, error) {
	digits := strings.TrimRight(s, "kKmMgGtTiIbB ")
	unit := strings.TrimSpace(s[len(digits):])
	if !plainNumber(digits) {
		return 0, fmt.Errorf("not a size; write %s", forms)
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, fmt.Errorf("not a size; write %s", forms)
	}
	factor, ok := unitFactor(strings.ToUpper(unit))
	if !ok {
		return 0, fmt.Errorf("%q is not a unit; write %s", unit, forms)
	}
	n *= factor
	if n >= math.MaxInt64 {
		return 0, fmt.Errorf("too large")
	}
	return Size(n), nil
}

// plainNumber reports whether s consists of digits with at most one dot: no sign,
// no exponent.
func plainNumber(s string) bool {
	whole, fraction, _ := strings.Cut(s, ".")
	return whole != "" && strings.Trim(whole+fraction, "0123456789") == ""
}

func unitFactor(unit string) (float64, bool) {
	if unit == "" || unit == "B" {
		return 1, true
	}
	power := float64(1 + strings.IndexByte("KMGT", unit[0]))
	if power == 0 {
		return 0, false
	}
	switch unit[1:] {
	case "", "IB":
		return math.Pow(1024, power), true
	case "B":
		return math.Pow(1000, power), true
	}
	return 0, false
}

// Size is a number of bytes, or of bytes per second: "64MiB", "1.5G", "10M/s".
type Size int64

// Max is the largest Size.
const Max = Size(math.MaxInt64)

// UnmarshalText parses a size with an optional "/s".
func (s *Size) UnmarshalText(text []byte) error {
	n, err := Parse(strings.TrimSuffix(string(text), "/s"))
	if err != nil {
		return fmt.Errorf("%q is %w", text, err)
	}
	*s = n
	return nil
}

// MarshalText returns the exact size in a form that UnmarshalText accepts.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON writes a number of bytes, because programs read JSON.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(s), 10), nil }

// UnmarshalJSON reads a number of bytes.
func (s *Size) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*int64)(s)) }

// String returns the size in the largest unit that gives a whole number.
func (s Size) String() string {
	n, units := int64(s), []string{"", "KiB", "MiB", "GiB", "TiB"}
	for n != 0 && n%1024 == 0 && len(units) > 1 {
		n, units = n/1024, units[1:]
	}
	return strconv.FormatInt(n, 10) + units[0]
}

// Text formats a number of bytes for people: "512 B", "1.2 GiB".
func Text(n uint64) string { return humanize.IBytes(n) }

// Rate formats bytes per second for people.
func Rate(n uint64) string { return Text(n) + "/s" }
