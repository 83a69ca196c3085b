package replicate

import (
	"fmt"
	"strings"
	"unicode"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/remedy"
	"zxfer/pkg/transport"
)

// InKeys wraps err so that its message and hint name job-file keys instead of options. It returns
// nil for nil.
func InKeys(err error) error {
	if err == nil {
		return nil
	}
	return &inKeys{err, "SRC TARGET"}
}

// InKeysOf is InKeys for the error of a transfer between two ends.
func InKeysOf(err error, source, target endpoint.Endpoint) error {
	if err == nil {
		return nil
	}
	return &inKeys{err, remedy.Command(source.String(), target.String())}
}

type inKeys struct {
	error
	ends string
}

func (e *inKeys) Error() string { return KeysOf(e.error.Error(), e.ends) }

func (e *inKeys) HintText() string { return KeysOf(fault.MarkedHint(e.error), e.ends) }

func (e *inKeys) Unwrap() error { return e.error }

// Keys replaces the options in a text with job-file keys.
func Keys(text string) string { return KeysOf(text, "SRC TARGET") }

// KeysOf replaces the options in a text about a transfer between the two ends.
func KeysOf(text, ends string) string {
	return option.Expand(text, func(id, value string) string { return keyOption(id, value, ends) })
}

// keyOption returns an option as a setting of a job. An option without a key becomes a zxfer send
// between the ends.
func keyOption(id, value, ends string) string {
	key, kind := jobKey(id)
	switch {
	case id == "rotate":
		return `on_divergence = "rotate"`
	case key == "":
		return option.Flags("zxfer send " + option.Name(id, value) + " " + ends)
	case kind == "bool":
		return key + " = true"
	case value == "", value == "=": // option without a value
		return key
	case kind == "N":
		return key + " = " + value
	case kind == "list":
		return key + " = [" + tomlText(value) + "]"
	case kind == "table":
		name, value, _ := strings.Cut(value, "=")
		return key + " = { " + tomlText(name) + " = " + tomlText(value) + " }"
	}
	return key + " = " + tomlText(value)
}

// KeyOf returns the key of the first option that an error names, "" = none.
func KeyOf(err error) (key string) {
	if err != nil {
		option.Expand(err.Error(), func(id, _ string) string {
			if key == "" {
				key, _ = jobKey(id)
			}
			return ""
		})
	}
	return key
}

// jobKey returns the key of an option and the type of its value, or "" if there is no key.
func jobKey(id string) (key, kind string) {
	for _, o := range transport.Options(transport.JobFile) {
		if o.ID == id {
			return "transfer." + o.Key, o.Value(&transport.Settings{}).Type()
		}
	}
	switch id {
	case "decrypt":
		return "transfer.decrypt", "bool"
	case "set":
		return "properties.set", "table"
	case "exclude":
		return "properties.exclude", "list"
	case "props":
		return "properties.carry", "bool"
	case "carry":
		return "properties.carry", "list"
	case "skip-check":
		return "transfer.skip_checks", "list"
	case "first":
		return "first", "text"
	case "recursive":
		return "recursive", "bool"
	case "snapshot":
		return "snapshots.take", "text"
	case "include-snaps", "exclude-snaps":
		return "snapshots.adopt", "list"
	case "bookmark":
		return "bookmarks", "text"
	}
	return "", ""
}

// tomlText returns a quoted TOML string. Some escapes of Go, such as \x1b, are invalid in TOML.
func tomlText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range strings.ToValidUTF8(s, "\ufffd") {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
