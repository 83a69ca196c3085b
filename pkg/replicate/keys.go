package replicate

import (
	"fmt"
	"strconv"

	"zxfer/pkg/option"
	"zxfer/pkg/way"
)

// Keys writes the options that a text names as the keys of a job file.
func Keys(text string) string { return option.Expand(text, keyOption) }

// keyOption is an option as a job's key. What no job file says is zxfer send's.
func keyOption(id, value string) string {
	for _, o := range way.Options(way.JobFile) {
		if o.ID != id {
			continue
		}
		key := "transfer." + o.Key
		kind := o.Value(&way.Way{}).Type()
		switch {
		case kind == "bool":
			return key + " = true"
		case value == "":
			return key
		case kind == "N":
			return key + " = " + value
		}
		return fmt.Sprintf("%s = %s", key, strconv.Quote(value))
	}
	return option.Flags("zxfer send " + option.Name(id, value))
}
