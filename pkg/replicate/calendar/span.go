package calendar

import (
	"cmp"
	"encoding"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // for hosts without a zone database

	toml "github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Duration is a time span: "90s", "15m", "36h", "7d", or a sequence such as "1d12h".
type Duration time.Duration

func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	var days time.Duration
	if whole, rest, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(whole, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/dayLength) {
			return fmt.Errorf("%q is not a time span; write 90s, 15m, 36h or 7d", s)
		}
		days = time.Duration(n) * dayLength
		if s = rest; s == "" {
			s = "0s"
		}
	}
	span, err := time.ParseDuration(s)
	if err != nil || span < 0 || span > math.MaxInt64-days {
		return fmt.Errorf("%q is not a time span; write 90s, 15m, 36h or 7d", string(text))
	}
	*d = Duration(days + span)
	return nil
}

// UnmarshalTOML accepts only strings.
func (d *Duration) UnmarshalTOML(raw []byte) error { return UnmarshalString(raw, d) }

// MarshalText is the inverse of UnmarshalText.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string {
	if days := time.Duration(d) / dayLength; days >= 2 {
		rest := ""
		if d %= Duration(dayLength); d != 0 {
			rest = d.String()
		}
		return strconv.FormatInt(int64(days), 10) + "d" + rest
	}
	s := time.Duration(d).String()
	// shorten 1h0m0s to 1h
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
		if t, ok := strings.CutSuffix(s, "h0m"); ok {
			s = t + "h"
		}
	}
	return s
}

// Grace is a time span. 0, written "keep", means forever.
type Grace Duration

const graceForever = "keep"

// UnmarshalText reads "keep" or a time span of at least one day.
func (g *Grace) UnmarshalText(text []byte) error {
	if string(text) == graceForever {
		*g = 0
		return nil
	}
	if err := (*Duration)(g).UnmarshalText(text); err != nil || *g < Grace(dayLength) {
		return fmt.Errorf("%q: write \"keep\", or a time span of at least one day, such as 90d", text)
	}
	return nil
}

// UnmarshalTOML accepts only strings.
func (g *Grace) UnmarshalTOML(raw []byte) error { return UnmarshalString(raw, g) }

// MarshalText is the inverse of UnmarshalText.
func (g Grace) MarshalText() ([]byte, error) {
	if g == 0 {
		return []byte(graceForever), nil
	}
	return []byte(Duration(g).String()), nil
}

// UnmarshalString reads a TOML value that must be a string. The decoder would convert a number to
// the underlying type: 30 would mean 30 nanoseconds.
func UnmarshalString(raw []byte, into encoding.TextUnmarshaler) error {
	var v struct{ V any }
	if err := toml.Unmarshal(append([]byte("v = "), raw...), &v); err != nil {
		return fmt.Errorf("%q is not a string in quotes", raw)
	}
	text, ok := v.V.(string)
	if !ok {
		text = string(raw)
	}
	if err := into.UnmarshalText([]byte(text)); err != nil {
		return unstable.NewParserError(raw, "%s", err)
	}
	return nil
}

// Zone is a time zone: "local", the zone of the host that runs the job, or an IANA name, such as
// "Europe/Berlin". The zero value is UTC.
type Zone struct {
	name string
	at   *time.Location
}

func (z *Zone) UnmarshalText(text []byte) error {
	name := string(text)
	if name == "local" {
		*z = Zone{name, time.Local}
		return nil
	}
	at, err := time.LoadLocation(name)
	if err != nil || name == "" || at == time.Local {
		return fmt.Errorf("%q is not a time zone; write local, UTC or a name such as Europe/Berlin", name)
	}
	*z = Zone{name, at}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (z Zone) MarshalText() ([]byte, error) { return []byte(z.String()), nil }

func (z Zone) String() string { return cmp.Or(z.name, "UTC") }

func (z Zone) Location() *time.Location { return cmp.Or(z.at, time.UTC) }

// dayLength is the length of most days.
const dayLength = 24 * time.Hour
