package zfs

import (
	"fmt"
	"strconv"
	"strings"
)

// DirectionProperty is a user property of a copy. It records from which dataset plain increments are
// safe (see Direction). Only a local value counts.
const DirectionProperty = "zxfer:direction"

// Direction is the value of DirectionProperty: in all snapshots of the copy since a transaction group,
// the files have block sizes with which increments from that source lose no data. A full stream, or a
// comparison of the block sizes, proves that. The record ends when the source receives from the copy.
type Direction struct {
	From  uint64 // GUID of the source dataset
	Since uint64 // createtxg of the first such snapshot, in the copy's pool; 0 = all snapshots
}

// String returns the value of DirectionProperty.
func (d Direction) String() string { return fmt.Sprintf("%d-%d", d.From, d.Since) }

// ParseDirection parses the value of DirectionProperty. It accepts only values that String returns.
func ParseDirection(value string) (Direction, error) {
	from, since, _ := strings.Cut(value, "-")
	d := Direction{}
	var errs [2]error
	d.From, errs[0] = strconv.ParseUint(from, 10, 64)
	d.Since, errs[1] = strconv.ParseUint(since, 10, 64)
	if errs[0] != nil || errs[1] != nil || d.From == 0 || d.String() != value {
		return Direction{}, fmt.Errorf("%s has a value that zxfer did not write: %s", DirectionProperty, cutValue(value))
	}
	return d, nil
}

// Direction returns the dataset's own record, or the zero Direction.
func (d *Dataset) Direction() Direction {
	p := d.Properties[DirectionProperty]
	if !p.Local() {
		return Direction{}
	}
	out, err := ParseDirection(p.Value)
	if err != nil {
		return Direction{}
	}
	return out
}
