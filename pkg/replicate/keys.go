package replicate

import (
	"fmt"
	"strings"
	"unicode"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/transport"
)

// Keys writes the options that a text names as the keys of a job file.
func Keys(text string) string { return option.Expand(text, keyOption) }

// InKeys is err with the options that it names written as keys, nil for nil.
func InKeys(err error) error {
	if err == nil {
		return nil
	}
	return &inKeys{err}
}

type inKeys struct{ error }

func (e *inKeys) Error() string    { return Keys(e.error.Error()) }
func (e *inKeys) HintText() string { return Keys(fault.HintOf(e.error)) }
func (e *inKeys) Unwrap() error    { return e.error }

// keyOption is an option as a job's key. What no job file says is zxfer send's.
func keyOption(id, value string) string {
	key, kind := ofJob(id)
	switch {
	case id == "rotate":
		return `on_divergence = "rotate"`
	case key == "":
		return option.Flags("zxfer send " + option.Name(id, value))
	case kind == "bool":
		return key + " = true"
	case value == "", value == "=": // of its own choice
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

// tomlText returns a string as TOML has it. Go's own escapes, such as \x1b, are not TOML's.
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

// ofJob is the key of an option, and the kind of its value.
func ofJob(id string) (key, kind string) {
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
