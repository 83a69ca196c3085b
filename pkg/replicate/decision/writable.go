package decision

import (
	"slices"
	"strings"

	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// WritableCopies are existing copies of a target that can be changed, as other tools leave them. After a
// write, or after a mounted filesystem with atime was read, the next run refuses the copy.
type WritableCopies struct {
	// Mountable are filesystems that zfs mount -a mounts, Others the other filesystems and volumes.
	Mountable []string `json:"mountable"`
	Others    []string `json:"others"`
}

// Writable returns the writable copies in the listing of a target, or nil. It omits copies that became
// a source, and targets that the job keeps writable.
func Writable(v *Survey, t *replicate.Target, l *zfs.Listing) *WritableCopies {
	if t.Properties.Set["readonly"] == "off" || slices.Contains(t.Properties.Exclude, "readonly") {
		return nil
	}
	w := &WritableCopies{Mountable: []string{}, Others: []string{}}
	there := l.ByName()
	for _, d := range v.Source.Datasets {
		c := there[t.CopyOf(v.Root, d.Name)]
		if c == nil || c.Get("readonly") != "off" || !t.SelectsName(v.Root, d.Name) || becameSource(c.Name, there) {
			continue
		}
		if c.Type == zfs.Filesystem && c.Get("canmount") == "on" && strings.HasPrefix(c.Get("mountpoint"), "/") && t.Properties.Set["canmount"] == "" {
			w.Mountable = append(w.Mountable, c.Name)
		} else {
			w.Others = append(w.Others, c.Name)
		}
	}
	if w.Count() == 0 {
		return nil
	}
	return w
}

func becameSource(name string, there map[string]*zfs.Dataset) bool {
	_, role, err := zfs.RoleOf(name, func(name string) map[string]zfs.Property {
		if d := there[name]; d != nil {
			return d.Properties
		}
		return nil
	})
	return err != nil || !role.Receives()
}

// Count returns the number of copies.
func (w *WritableCopies) Count() int { return len(w.Mountable) + len(w.Others) }

// maxProtected limits the names of each kind in one command, because a shell limits its length.
const maxProtected = 200

// Command returns the command that protects the copies on the host. If there are too many, the next check names the
// rest.
func (w *WritableCopies) Command(at remedy.Host) string {
	return protectCommand(at, w.Mountable[:min(len(w.Mountable), maxProtected)], w.Others[:min(len(w.Others), maxProtected)])
}

// protectCommand returns one command that makes filesystems and other datasets read-only, and that
// keeps the filesystems unmounted. Descendants may have local values, so each dataset is named.
func protectCommand(at remedy.Host, filesystems, others []string) string {
	var commands []string
	if len(filesystems) > 0 {
		commands = append(commands, remedy.Command(append([]string{"zfs", "set", "readonly=on", "canmount=noauto"}, filesystems...)...))
	}
	if len(others) > 0 {
		commands = append(commands, remedy.Command(append([]string{"zfs", "set", "readonly=on"}, others...)...))
	}
	return at.Line(strings.Join(commands, " && "))
}
