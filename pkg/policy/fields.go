package policy

import (
	"reflect"
	"slices"
	"strings"

	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// decided are the fields that a restricted agent may be asked with: those that a
// rule judges, and those of which no value harms anybody, whatever else is asked.
// A request with any other, such as one that was added since, is refused.
var decided = map[reflect.Type][]string{
	reflect.TypeFor[struct{}]():          fields("", ""),
	reflect.TypeFor[Tagged]():            fields("Tag Snapshots", ""),
	reflect.TypeFor[PropertyQuery]():     fields("Names Properties", ""),
	reflect.TypeFor[site.ListQuery]():    fields("Dataset Only", "Recursive Versions Newest Alone Changed"),
	reflect.TypeFor[zfs.StreamFlags]():   fields("Raw", "LargeBlocks Embedded Compressed"),
	reflect.TypeFor[zfs.SendSpec]():      fields("Dataset From Through To Flags Token", ""),
	reflect.TypeFor[site.ContentQuery](): fields("SendSpec", "Within"),
	reflect.TypeFor[zfs.Within]():        fields("", "Object From To"),
	// What arrives a zfs.Gate holds against this, in every receive.
	reflect.TypeFor[zfs.Arrival]():     fields("Base Volume", "Snapshots Raw Resumed"),
	reflect.TypeFor[zfs.SnapshotID]():  fields("", "Name GUID"),
	reflect.TypeFor[zfs.ReceiveSpec](): fields("Target Rollback Origin Set KeepKey Arrival", "Whole"),
	reflect.TypeFor[wire.Offer](): fields("Address PortLow Peer Deadline Socket",
		"Mode Streams PortHigh"), // which wire.Listen bounds
	reflect.TypeFor[wire.Ticket]():      fields("Address Socket Deadline", "Mode Session Secret Streams ServerPin ClientCert ClientKey"),
	reflect.TypeFor[way.Socket]():       fields("Window", "Congestion"),
	reflect.TypeFor[transfer.Options](): fields("Buffer Block BandLimit CompressThreads Stall", "Compress"),
	reflect.TypeFor[site.Task]():        fields("Send Receive Ticket Options", "Offered"),
}

func fields(judged, harmless string) []string { return strings.Fields(judged + " " + harmless) }

// undecided names a field that is set and that nothing was decided about; ""
// where there is none.
func undecided(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return undecided(v.Elem())
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.String || k == reflect.Uint8 {
			return ""
		}
		for i := range v.Len() {
			if field := undecided(v.Index(i)); field != "" {
				return field
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			switch {
			case v.Field(i).IsZero():
			case !slices.Contains(decided[v.Type()], name):
				return v.Type().String() + "." + name
			default:
				if field := undecided(v.Field(i)); field != "" {
					return field
				}
			}
		}
	case reflect.Map:
		if v.Type() != reflect.TypeFor[map[string]string]() {
			return v.Type().String()
		}
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.Array:
		return v.Type().String()
	}
	return ""
}
