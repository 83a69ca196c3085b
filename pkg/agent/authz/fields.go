package authz

import (
	"reflect"
	"slices"
	"strings"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// checkedFields lists the fields that a request to a restricted agent may set: fields that a
// rule checks, and fields that are harmless with any value. A request with another field, such
// as a new one, is refused.
var checkedFields = map[reflect.Type][]string{
	reflect.TypeFor[struct{}]():            fieldNames("", ""),
	reflect.TypeFor[hosts.Tagged]():        fieldNames("Tag Snapshots", ""),
	reflect.TypeFor[hosts.PropertyQuery](): fieldNames("Names Properties", ""),
	reflect.TypeFor[zfs.PropertyChange]():  fieldNames("Dataset Set Revert", ""),
	reflect.TypeFor[zfs.MountRequest]():    fieldNames("Dataset Over Trusted", "At Boot"), // OpMount judges the last two
	reflect.TypeFor[hosts.ListQuery]():     fieldNames("Dataset Only User", "Recursive Versions Newest NoAncestors Identity Changed Brief"),
	reflect.TypeFor[zfs.StreamFlags]():     fieldNames("Raw", "LargeBlocks Embedded Compressed"),
	reflect.TypeFor[zfs.SendSpec]():        fieldNames("Dataset From Through To Flags Token", ""),
	reflect.TypeFor[hosts.ContentQuery]():  fieldNames("SendSpec KeyFile", "Within Seed"),
	reflect.TypeFor[zfs.DigestRange]():     fieldNames("", "Object From To"),
	reflect.TypeFor[files.Query]():         fieldNames("Snapshot KeyFile", "Path Sample Seed Seeded Replica Within"),
	reflect.TypeFor[files.BlockQuery]():    fieldNames("Snapshot Inodes", "Seed Buckets"),
	// A zfs.Gate compares every received stream with this.
	reflect.TypeFor[zfs.Arrival]():     fieldNames("Base Volume", "Snapshots Raw Resumed"),
	reflect.TypeFor[zfs.SnapshotID]():  fieldNames("", "Name GUID"),
	reflect.TypeFor[zfs.ReceiveSpec](): fieldNames("Target Rollback Origin Set Carried Carry KeepKey Corrective Arrival", "NotResumable Only"),
	reflect.TypeFor[zfs.BlockRange]():  fieldNames("", "Object First Count"), // fewer blocks of a stream
	reflect.TypeFor[zfs.Carry]():       fieldNames("", "All Named"),          // the Guard sets its own
	reflect.TypeFor[tcp.Offer](): fieldNames("Address PortLow Peer Deadline Socket",
		"Mode Streams PortHigh"), // tcp.Listen limits these
	reflect.TypeFor[tcp.Ticket]():          fieldNames("Address Socket Deadline", "Mode Session Secret Streams"),
	reflect.TypeFor[transport.Socket]():    fieldNames("Window", "Congestion"),
	reflect.TypeFor[transfer.Options]():    fieldNames("Buffer Block BandLimit CompressThreads Stall", "Compress Concurrent LimitID"),
	reflect.TypeFor[hosts.Task]():          fieldNames("From To", ""),
	reflect.TypeFor[hosts.SendStream]():    fieldNames("Spec Options", "Only"),
	reflect.TypeFor[hosts.ReceiveStream](): fieldNames("Spec Options", "Report"),
	reflect.TypeFor[hosts.SendFiles]():     fieldNames("Archive Options", ""),
	reflect.TypeFor[files.Archive]():       fieldNames("Snapshot KeyFile", "Paths After NamesOnly"),
	reflect.TypeFor[hosts.Dial]():          fieldNames("Ticket", ""),
	reflect.TypeFor[hosts.Accept]():        fieldNames("", "Session"),
	reflect.TypeFor[hosts.Nothing]():       fieldNames("", ""),
	reflect.TypeFor[hosts.Attached]():      fieldNames("", "Number Stream"), // the other end is checked
	reflect.TypeFor[zfs.DrillClone]():      fieldNames("Snapshot Writable KeyFile Among", "Job"),
	reflect.TypeFor[zfs.DrillClones]():     fieldNames("Datasets", "Job"),
	reflect.TypeFor[zfs.DivergedCopy]():    fieldNames("Dataset As", "GUID"),
	reflect.TypeFor[zfs.RenamedCopy]():     fieldNames("Dataset As", "GUID Base"),
	reflect.TypeFor[zfs.Orphan]():          fieldNames("Dataset Tag", "GUID Snapshots"),
}

func fieldNames(judged, harmless string) []string { return strings.Fields(judged + " " + harmless) }

// uncheckedField returns the name of a nonzero field that is not in checkedFields, or "".
func uncheckedField(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return uncheckedField(v.Elem())
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.String || k == reflect.Uint8 {
			return ""
		}
		for i := range v.Len() {
			if field := uncheckedField(v.Index(i)); field != "" {
				return field
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			switch {
			case v.Field(i).IsZero():
			case !slices.Contains(checkedFields[v.Type()], name):
				return v.Type().String() + "." + name
			default:
				if field := uncheckedField(v.Field(i)); field != "" {
					return field
				}
			}
		}
	case reflect.Map:
		if v.Type() != reflect.TypeFor[map[string]string]() {
			return v.Type().String()
		}
	case reflect.Interface:
		if !v.IsNil() {
			return uncheckedField(v.Elem())
		}
	case reflect.Func, reflect.Chan, reflect.Array:
		return v.Type().String()
	}
	return ""
}
