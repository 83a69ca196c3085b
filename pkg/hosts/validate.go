package hosts

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strconv"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/printable"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// CheckFacts checks facts. It clears addresses that nothing can connect to: a listener binds to the
// address at which another host claims to have reached it.
func CheckFacts(f *Facts) error {
	for _, a := range []*string{&f.SSHLocal, &f.SSHPeer} {
		ip, err := netip.ParseAddr(*a)
		if err != nil || ip.IsUnspecified() || ip.IsMulticast() {
			*a = ""
		}
	}
	return plausible(f, shown)
}

// checkDevice returns an error if the facts are not those of the device at path name.
func checkDevice(name string, f *device.Facts) error {
	kinds := []string{device.KindDisk, device.KindPartition, device.KindLoop, device.KindLVM, device.KindDM,
		device.KindMD, device.KindZvol, device.KindNBD, device.KindFile, device.KindMissing}
	switch {
	case f.Path != name:
		return fmt.Errorf("got an answer about %q, expected %q", cut(f.Path), name)
	case !slices.Contains(kinds, f.Kind):
		return fmt.Errorf("got %q for a %q", name, cut(f.Kind))
	case !path.IsAbs(f.Real):
		return fmt.Errorf("%q has the address %q", name, cut(f.Real))
	}
	if err := checkVolume(f.Volume); err != nil {
		return err
	}
	return plausible(f, verbatim)
}

// checkDeviceState returns an error if more is stored than the device has.
func checkDeviceState(t device.Task, s *device.State) error {
	if s.Stored < 0 || s.Stored > t.Source.Size {
		return fmt.Errorf("got %d of %d bytes as stored", s.Stored, t.Source.Size)
	}
	if !slices.Contains([]string{"", device.XXH3, device.BLAKE3}, s.Digest) {
		return fmt.Errorf("%q is not the name of a digest", cut(s.Digest))
	}
	return plausible(s, shown)
}

// checkDigest returns an error if d is not the digest of a stream.
func checkDigest(d *Digest) error {
	for _, sum := range []string{d.Sum, d.Zeroed, d.BlockSizes} {
		if !isHex(sum, 16) {
			return fmt.Errorf("%q is not a digest", cut(sum))
		}
	}
	if len(d.Parts) > zfs.MaxParts || d.Shift > 63 {
		return fmt.Errorf("digest of %d parts of 2^%d positions", len(d.Parts), d.Shift)
	}
	return plausible(d, shown)
}

// checkDeviceDigest returns an error if d does not answer q.
func checkDeviceDigest(q device.DigestQuery, d *device.Digest) error {
	size := q.Device.Size
	if q.Size > 0 {
		size = min(size, q.Size)
	}
	r := d.Result.Device
	switch {
	case r.Size != size:
		return fmt.Errorf("%d bytes of %d were hashed", r.Size, size)
	case !isDigest(r.SourceDigest, q.Options.Digest()):
		return fmt.Errorf("%q is not a digest", cut(r.SourceDigest))
	case r.Block <= 0 || r.Block > tcp.MaxRaw:
		return fmt.Errorf("blocks of %d bytes", r.Block)
	}
	if n, bytes := device.Parts(size, r.Block); len(d.Parts) != n || d.PartBytes != bytes {
		return fmt.Errorf("got %d parts of %d bytes, expected %d of %d", len(d.Parts), d.PartBytes, n, bytes)
	}
	return plausible(d, shown)
}

// checkFiles returns an error if d does not answer q.
func checkFiles(q files.Query, d *files.Digest) error {
	if len(d.Parts) != files.Parts {
		return fmt.Errorf("got a digest of %d parts, expected %d", len(d.Parts), files.Parts)
	}
	for _, p := range d.Parts {
		if !isHex(p, 16) {
			return fmt.Errorf("%q is not a digest", cut(p))
		}
	}
	if q.Replica != (d.BlockSizes != "") || q.Replica && !isHex(d.BlockSizes, 16) {
		return fmt.Errorf("%q is not a digest of block sizes", cut(d.BlockSizes))
	}
	if len(d.Listed) > files.MaxListed || len(d.Listed) > 0 && q.Within == 0 {
		return fmt.Errorf("got %d files", len(d.Listed))
	}
	if len(d.Problems) > files.MaxProblems || d.Failed < uint64(len(d.Problems)) {
		return fmt.Errorf("got %d problems", len(d.Problems))
	}
	return plausible(d, shown)
}

// checkTicket returns an error if the ticket is not for the requested listener. The other end
// connects to the ticket's address.
func checkTicket(o tcp.Offer, t *tcp.Ticket) error {
	host, port, err := net.SplitHostPort(t.Address)
	if err != nil {
		return errors.New("the ticket has no address")
	}
	low, high := 1024, 65535 // the kernel's choice
	if o.PortLow > 0 {
		low, high = o.PortLow, o.PortHigh
	}
	n, err := strconv.Atoi(port)
	switch {
	case !sameAddress(host, o.Address):
		return fmt.Errorf("the ticket is for %q, expected a listener at %s", cut(host), o.Address)
	case err != nil || n < low || n > high:
		return fmt.Errorf("the ticket is for port %q, expected one of %d-%d", cut(port), low, high)
	case t.Mode != o.Mode || t.Streams != max(o.Streams, 1) || t.Socket != o.Socket:
		return fmt.Errorf("the ticket is for %d connections of mode %q with sockets %v, expected %d of mode %q with %v",
			t.Streams, cut(string(t.Mode)), t.Socket, o.Streams, o.Mode, o.Socket)
	case t.Deadline < 0 || o.Deadline > 0 && t.Deadline != o.Deadline || t.Deadline > time.Hour:
		return fmt.Errorf("the ticket's deadline is %s, expected %s", t.Deadline, o.Deadline)
	}
	return t.Check()
}

func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	if err != nil {
		return false
	}
	y, err := netip.ParseAddr(b)
	return err == nil && x.Unmap() == y.Unmap()
}

// CheckProgress checks a progress report.
func CheckProgress(p *transfer.Progress) error { return plausible(p, shown) }

// checkResult returns an error if the result does not fit the task.
func checkResult(t Task, r *Result) error {
	if moves := kind(t.Moves()); (moves == drive || moves == volume) != (r.Device != nil) || (moves == tree) != (r.Files != nil) || (moves == noise) != (r.NoiseRate != nil) {
		return errors.New("got the result of another task")
	}
	if r.Digest != "" && !isHex(r.Digest, 16) {
		return fmt.Errorf("%q is not a digest", cut(r.Digest))
	}
	if to, ok := t.To.(ReceiveStream); r.Arrived != nil && !(ok && to.Report) {
		return errors.New("got the result of another task")
	}
	if a := r.Files; a != nil {
		if n := max(len(a.Names), len(a.Differ), len(a.Blocked), len(a.Problems)); n > 2*files.MaxProblems {
			return fmt.Errorf("a list of %d files", n)
		}
	}
	if d := r.Device; d != nil {
		for _, sum := range []string{d.SourceDigest, d.TargetDigest} {
			if sum != "" && !isDigest(sum, device.XXH3) && !isDigest(sum, device.BLAKE3) {
				return fmt.Errorf("%q is not a digest", cut(sum))
			}
		}
	}
	return plausible(r, shown)
}

// checkCeiling returns an error if c is not the requested measurement.
func checkCeiling(q probe.Request, c *probe.Ceiling) error {
	if c.ID != q.ID {
		return fmt.Errorf("got measurement %q, expected %s", cut(c.ID), q.ID)
	}
	return plausible(c, shown)
}

// textMode selects how plausible treats strings with unprintable characters.
type textMode bool

const (
	shown    textMode = true  // for people: unprintable characters are replaced
	verbatim textMode = false // sent back to the host that they came from: unchanged
)

// Limits of any reply.
const (
	maxNumber = 1 << 60 // bytes; in nanoseconds, 36 years
	maxText   = 16 << 10
)

// plausible returns an error if a number anywhere in a reply is negative or absurdly large, or if a
// string is too long. Unsigned numbers are not limited, because they are identifiers or rates.
func plausible(answer any, w textMode) error { return w.walk(reflect.ValueOf(answer), "") }

func (w textMode) walk(v reflect.Value, name string) error {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return w.walk(v.Elem(), name)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return nil
		}
		for i := range v.NumField() {
			if err := w.walk(v.Field(i), v.Type().Field(i).Name); err != nil {
				return err
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := range v.Len() {
			if err := w.walk(v.Index(i), name); err != nil {
				return err
			}
		}
	case reflect.String:
		if s := v.String(); len(s) > maxText {
			return fmt.Errorf("%s has %d bytes", name, len(s))
		} else if w == shown && !printable.IsText(s) && v.CanSet() {
			v.SetString(printable.Text(s))
		}
	case reflect.Int, reflect.Int64:
		if n := v.Int(); n < 0 || n > maxNumber {
			return fmt.Errorf("%s is %d", name, n)
		}
	case reflect.Float64:
		if n := v.Float(); math.Abs(n) > maxNumber || math.IsNaN(n) {
			return fmt.Errorf("%s is %g", name, n)
		}
	case reflect.Bool, reflect.Uint, reflect.Uint8, reflect.Uint32, reflect.Uint64:
	default:
		return fmt.Errorf("%s has the unknown type %s", name, v.Kind())
	}
	return nil
}

// isDigest reports whether s is a device digest of the algorithm name.
func isDigest(s, name string) bool {
	if name == device.XXH3 {
		return isHex(s, tcp.MarkSize)
	}
	return isHex(s, tcp.SumSize)
}

func isHex(s string, bytes int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == bytes
}

// cut shortens a string that an error quotes.
func cut(s string) string { return s[:min(len(s), zfs.MaxName)] }
