package zfs

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Act is an operation of ZFS with the permissions of zfs allow that an account other than root needs for it.
type Act struct {
	Op   string // as in Failure.Op
	Text string // what zxfer does by it
	// Permissions are needed on the dataset. If it does not exist yet, they are needed on its parent.
	Permissions []string
	// Properties is set if each property that the operation sets needs a permission with its name, or
	// userprop.
	Properties bool
	// Where is set if Permissions are needed on another dataset.
	Where string
	// Root is set if no permission lets another account than root do it on Linux.
	Root bool
}

// Acts returns the operations of ZFS that zxfer runs and that need a permission. All messages and pages about
// permissions come from this table. A test takes each permission away on real pools.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/zfs_ioctl.c (zfs_secpolicy_recv, zfs_secpolicy_destroy_perms …)
func Acts() []Act {
	return []Act{
		{Op: OpSend, Text: "send a stream, or read one to compare contents", Permissions: []string{"send"}},
		{Op: OpHold, Text: "place holds, and send several snapshots in one stream", Permissions: []string{"hold"}},
		{Op: OpRelease, Text: "release holds", Permissions: []string{"release"}},
		{Op: OpSnapshot, Text: "take snapshots", Permissions: []string{"snapshot"}},
		{Op: OpBookmark, Text: "create bookmarks", Permissions: []string{"bookmark"}},
		{Op: OpDestroy, Text: "destroy snapshots, bookmarks, copies and clones", Permissions: []string{"destroy", "mount"}},
		{Op: OpReceive, Text: "receive a stream", Permissions: []string{"create", "mount", "receive"}, Properties: true},
		{Op: OpDiscard, Text: "discard partially received state", Permissions: []string{"destroy", "mount"}},
		{Op: OpCreate, Text: "create missing parents of a copy", Permissions: []string{"canmount", "create", "mount"}},
		{Op: OpSet, Text: "set or inherit properties", Properties: true},
		{Op: OpInherit, Properties: true},
		{Op: OpRename, Text: "rename copies", Permissions: []string{"create", "mount", "rename"}, Where: "the parent of the copy"},
		{Op: OpRollback, Text: "roll back", Permissions: []string{"rollback"}},
		{Op: OpClone, Text: "clone a snapshot", Permissions: []string{"clone", "create", "mount"}, Properties: true, Where: "the root dataset of the pool"},
		{Op: OpChangeKey, Text: "let copies join an encryption root", Permissions: []string{"change-key"}},
		{Op: OpLoadKey, Text: "load or unload keys", Permissions: []string{"load-key"}},
		{Op: OpUnloadKey, Permissions: []string{"load-key"}},
		{Op: OpMount, Text: "mount or unmount: restore --mount, files of a snapshot, drills, block sizes", Root: true},
		{Op: OpUnmount, Root: true},
		{Op: OpScrub, Text: "scrub, import or export a pool", Root: true},
		{Op: OpImport, Root: true},
		{Op: OpExport, Root: true},
	}
}

// actOf returns the row of an operation, or a row without permissions.
func actOf(op string) Act {
	all := Acts()
	if i := slices.IndexFunc(all, func(a Act) bool { return a.Op == op }); i >= 0 {
		return all[i]
	}
	return Act{Op: op}
}

// Work is the part of a transfer or job that one host does.
type Work struct {
	ZFS string   // version of the kernel module, "2.3.9-1"; "" = unknown
	Ops []string // as in Act.Op
	// Properties are set by a receive or afterwards.
	Properties []string
	Raw        bool // all streams are raw
	Ranges     bool // a stream has several snapshots
	RollsBack  bool // a receive discards changes of its target
	Renames    bool // the root of a copy is renamed, and created again
}

// Permissions returns the permissions that the work needs, sorted. They are the weakest that the release of
// ZFS separates.
func (w Work) Permissions() []string {
	need := map[string]bool{}
	for _, op := range w.Ops {
		a := actOf(op)
		for _, p := range a.Permissions {
			switch p {
			case "send":
				p = w.sendPermission()
			case "receive":
				p = w.receivePermission()
			}
			need[p] = true
		}
		need["hold"] = need["hold"] || op == OpSend && w.Ranges
		for _, name := range w.Properties {
			if UserProperty(name) {
				name = "userprop"
			}
			need[name] = need[name] || a.Properties
		}
	}
	maps.DeleteFunc(need, func(_ string, needed bool) bool { return !needed })
	return slices.Sorted(maps.Keys(need))
}

// RootOnly reports whether no permission lets another account than root run one of the operations on Linux.
func RootOnly(ops []string) bool {
	return slices.ContainsFunc(ops, func(op string) bool { return actOf(op).Root })
}

// At returns the dataset on which permissions are needed for work on a dataset. exists reports whether the
// dataset exists.
func (w Work) At(dataset string, exists bool) string {
	if parent := ParentOf(dataset); parent != "" && (!exists || w.Renames) {
		return parent
	}
	return dataset
}

// sendPermission returns send:raw, which never decrypts, if it suffices. 2.4.0 does not accept it for ranges (-I).
//
// https://github.com/openzfs/zfs/blob/zfs-2.4.1/module/zfs/zfs_ioctl.c (zfs_secpolicy_send)
func (w Work) sendPermission() string {
	since := Release{2, 4, 0}
	if w.Ranges {
		since = Release{2, 4, 1}
	}
	if v, ok := ParseRelease(w.ZFS); ok && w.Raw && !v.Before(since) {
		return "send:raw"
	}
	return "send"
}

// receivePermission returns receive:append if nothing is rolled back. A user with receive may destroy data by
// receive -F.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.2/module/zfs/zfs_ioctl.c (zfs_secpolicy_recv)
func (w Work) receivePermission() string {
	if v, ok := ParseRelease(w.ZFS); ok && !w.RollsBack && !v.Before(Release{2, 3, 2}) {
		return "receive:append"
	}
	return "receive"
}

// AllowCommand returns the command that grants permissions on a dataset to a user.
func AllowCommand(user string, permissions []string, dataset string) string {
	return CommandLine([]string{"zfs", "allow", "-u", user, strings.Join(permissions, ","), dataset})
}

// Permitted holds the permissions that zfs allow gave an account: on a dataset, and on its descendants.
type Permitted struct {
	Here  []string `json:"here,omitempty"`
	Below []string `json:"below,omitempty"`
}

// maxPermitted limits the permissions in a list. OpenZFS 2.4 has 110.
const maxPermitted = 1000

// permissionWord is the form of a permission or, with "@", of a set of permissions.
var permissionWord = regexp.MustCompile(`^@?[A-Za-z0-9][A-Za-z0-9:._-]{0,255}$`)

// Check returns an error if another host cannot have read the permissions from ZFS.
func (p *Permitted) Check() error {
	for _, all := range [][]string{p.Here, p.Below} {
		if len(all) > maxPermitted {
			return fmt.Errorf("got %d permissions", len(all))
		}
		for _, word := range all {
			if !permissionWord.MatchString(word) {
				return fmt.Errorf("got the permission %s", cutValue(word))
			}
		}
	}
	return nil
}

// Missing returns the permissions that the account lacks. tree is set if it needs them on descendants, too.
func (p *Permitted) Missing(need []string, tree bool) (missing []string) {
	has := func(all []string, word string) bool {
		whole, _, _ := strings.Cut(word, ":") // send includes send:raw
		return slices.Contains(all, word) || slices.Contains(all, whole)
	}
	for _, word := range need {
		if !has(p.Here, word) || tree && !has(p.Below, word) {
			missing = append(missing, word)
		}
	}
	return missing
}

// maxAllow limits the output of zfs allow in bytes.
const maxAllow = 1 << 20

// errAllow refuses the output of zfs allow.
var errAllow = errors.New("zfs allow printed something else than permissions")

// ParsePermitted evaluates the output of "zfs allow DATASET" for a user and its groups. It omits permissions
// for the creator of a dataset, which only future datasets have.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zfs/zfs_main.c (print_fs_perms)
func ParsePermitted(output, dataset, user string, groups []string) (p Permitted, err error) {
	if len(output) > maxAllow {
		return p, errAllow
	}
	levels, err := parseAllow(output, dataset)
	if err != nil {
		return p, err
	}
	here, below := map[string]bool{}, map[string]bool{}
	for i, l := range levels {
		var local, descendent []string
		for _, g := range l.grants {
			if g.kind != "everyone" && (g.kind != "user" || g.name != user) && (g.kind != "group" || !slices.Contains(groups, g.name)) {
				continue
			}
			if g.local {
				local = append(local, g.words...)
			}
			if g.descendent {
				descendent = append(descendent, g.words...)
			}
		}
		expandSets(levels[i:], descendent, below, map[string]bool{})
		if l.dataset == dataset {
			expandSets(levels[i:], local, here, map[string]bool{})
		} else {
			expandSets(levels[i:], descendent, here, map[string]bool{})
		}
	}
	p = Permitted{Here: slices.Sorted(maps.Keys(here)), Below: slices.Sorted(maps.Keys(below))}
	return p, p.Check()
}

// allowLevel holds the grants on one dataset.
type allowLevel struct {
	dataset string
	sets    map[string][]string // by name, with "@"
	grants  []allowGrant
}

// allowGrant is a line of zfs allow.
type allowGrant struct {
	kind, name        string // user, group or everyone
	words             []string
	local, descendent bool
}

// parseAllow parses the blocks of a dataset and its ancestors, in this order.
func parseAllow(output, dataset string) (levels []allowLevel, err error) {
	section, next := "", dataset
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		text, entry := strings.CutPrefix(line, "\t")
		switch {
		case strings.HasPrefix(line, "---- Permissions on "):
			for next != "" && strings.Trim(strings.TrimPrefix(line, "---- Permissions on "+next+" "), "-") != "" {
				next = ParentOf(next) // no permissions on it
			}
			if next == "" {
				return nil, errAllow
			}
			levels = append(levels, allowLevel{dataset: next, sets: map[string][]string{}})
			section, next = "", ParentOf(next)
		case len(levels) == 0:
			return nil, errAllow
		case !entry:
			section = line
		default:
			if err := levels[len(levels)-1].add(section, text); err != nil {
				return nil, err
			}
		}
	}
	return levels, nil
}

// add adds a line below a heading.
func (l *allowLevel) add(section, text string) error {
	g := allowGrant{local: strings.HasPrefix(section, "Local"), descendent: strings.Contains(section, "Descendent")}
	who, words := "", text
	if i := strings.LastIndexByte(text, ' '); i >= 0 {
		who, words = text[:i], text[i+1:]
	}
	g.words = strings.Split(words, ",")
	for _, word := range g.words {
		if !permissionWord.MatchString(word) {
			return errAllow
		}
	}
	g.kind, g.name, _ = strings.Cut(who, " ")
	switch {
	case section == "Permission sets:" && strings.HasPrefix(who, "@"):
		l.sets[who] = g.words
	case section == "Create time permissions:" && who == "":
	case (g.local || g.descendent) && slices.Contains([]string{"user", "group", "everyone"}, g.kind):
		l.grants = append(l.grants, g)
	default:
		return errAllow
	}
	return nil
}

// expandSets adds permissions to a map. The nearest level defines a set, from the level of the grant upwards. seen
// has the sets that were added.
func expandSets(levels []allowLevel, words []string, into, seen map[string]bool) {
	for _, word := range words {
		switch {
		case !strings.HasPrefix(word, "@"):
			into[word] = true
		case !seen[word]:
			seen[word] = true
			for i := range levels {
				if inner, defined := levels[i].sets[word]; defined {
					expandSets(levels[i:], inner, into, seen)
					break
				}
			}
		}
	}
}
