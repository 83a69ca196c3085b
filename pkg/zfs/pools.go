package zfs

import (
	"bufio"
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// PoolQuery asks for the pools of a host.
type PoolQuery struct {
	// Pool limits the answer to one imported pool. The answer then comes from kernel statistics,
	// which do not block if the pool is suspended. It lacks Owned and Cached.
	Pool string `json:"pool,omitempty"`
	// Directories with devices to search for pools that are not imported; none = do not search.
	Directories []string `json:"directories,omitempty"`
}

// FoundPools lists pools of a host.
type FoundPools struct {
	Imported []ImportedPool `json:"imported"`
	Attached []AttachedPool `json:"attached,omitempty"`
}

// ImportedPool is a pool in use.
type ImportedPool struct {
	Name   string `json:"name"`
	GUID   uint64 `json:"guid,string"`
	Health string `json:"health"` // such as "ONLINE" or PoolSuspended
	// Owned reports that zxfer imported the pool (see PoolImport).
	Owned bool `json:"owned,omitempty"`
	// ReadOnly reports that the pool was imported read-only.
	ReadOnly bool `json:"read_only,omitempty"`
	// Cached reports that the pool is in the cache file: the host imports it when it boots.
	Cached bool `json:"cached,omitempty"`
}

// AttachedPool is a pool whose devices are present, and that is not imported.
type AttachedPool struct {
	Name  string `json:"name"` // from the disk: anyone may have written it
	GUID  uint64 `json:"guid,string"`
	State string `json:"state"` // such as "ONLINE" or "DEGRADED"
}

// Healths of a pool.
const (
	PoolOnline    = "ONLINE"
	PoolSuspended = "SUSPENDED"
)

// MaxPools limits the pools in a FoundPools.
const MaxPools = 1000

// PoolImport imports a pool by its GUID. No dataset is mounted, and the pool is not written to the
// cache file. Its alternate root is PoolRoot. It marks the pool as imported by zxfer until it is
// exported or the host reboots. It is a file, so that other programs cannot mount anything of the pool.
type PoolImport struct {
	GUID        uint64   `json:"guid,string"`
	Directories []string `json:"directories"` // with the devices
	ReadOnly    bool     `json:"read_only,omitempty"`
}

// PoolExport exports a pool that PoolImport has imported.
type PoolExport struct {
	GUID uint64 `json:"guid,string"`
}

// PoolRoot returns the alternate root of a pool that zxfer imports. run is the host's runtime
// directory.
func PoolRoot(run string, guid uint64) string {
	return path.Join(run, "pools", strconv.FormatUint(guid, 10))
}

// FindImportedArgs returns the arguments of zpool(8) that print the imported pools for
// ParseImported.
func FindImportedArgs() []string {
	return []string{"list", "-Hp", "-o", "name,guid,health,altroot,cachefile,readonly"}
}

// ParseImported parses the output for FindImportedArgs. run is the host's runtime directory.
func ParseImported(out, run string) (all []ImportedPool, err error) {
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 6 || len(all) >= MaxPools {
			return nil, fmt.Errorf("zpool list: unexpected line %q", line)
		}
		guid, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("zpool list: pool %q: GUID %q is not a number", f[0], f[1])
		}
		all = append(all, ImportedPool{Name: f[0], GUID: guid, Health: f[2], Owned: f[3] == PoolRoot(run, guid), Cached: f[4] != "none", ReadOnly: f[5] == "on"})
	}
	return all, nil
}

// FindAttachedArgs returns the arguments of zpool(8) that print the pools on devices for
// ParseAttached.
func FindAttachedArgs(directories []string) []string {
	return append([]string{"import"}, searchArgs(directories)...)
}

func searchArgs(directories []string) (args []string) {
	for _, d := range directories {
		args = append(args, "-d", d)
	}
	return args
}

// NoAttached is the message of zpool import that finds no pool.
const NoAttached = "no pools available to import"

var attachedLine = regexp.MustCompile(`^ *(pool|id|state): (.*)$`)

// ParseAttached parses the output for FindAttachedArgs. The names come from the disks. The caller must
// check the pool again after an import.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zpool/zpool_main.c (show_import)
func ParseAttached(out string) (all []AttachedPool) {
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := attachedLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		last := len(all) - 1
		switch {
		case m[1] == "pool" && len(all) < MaxPools:
			all = append(all, AttachedPool{Name: m[2]})
		case last < 0:
		case m[1] == "id":
			all[last].GUID, _ = strconv.ParseUint(m[2], 10, 64) // 0 is no pool's GUID
		case m[1] == "state":
			all[last].State = m[2]
		}
	}
	return all
}

// Args returns the arguments of zpool(8). run is the host's runtime directory.
func (i PoolImport) Args(run string) []string {
	args := append([]string{"import", "-N", "-o", "cachefile=none", "-R", PoolRoot(run, i.GUID)}, searchArgs(i.Directories)...)
	if i.ReadOnly {
		args = append(args, "-o", "readonly=on")
	}
	return append(args, strconv.FormatUint(i.GUID, 10))
}

// ExportArgs returns the arguments of zpool(8) that export a pool.
func ExportArgs(pool string) []string { return []string{"export", pool} }

var scrubEnd = regexp.MustCompile(`^scrub repaired .* on (\S{3} \S{3} [ 0-9]?[0-9] [0-9:]{8} [0-9]{4})$`)

// Scrubbed returns when a scrub completed, or zero if the last scan was no completed scrub. at is the
// host's time zone.
func (s *Scan) Scrubbed(at *time.Location) time.Time {
	m := scrubEnd.FindStringSubmatch(s.Text)
	if m == nil {
		return time.Time{}
	}
	t, _ := time.ParseInLocation(time.ANSIC, m[1], cmp.Or(at, time.UTC)) // zero if it is no time
	return t
}

// UsedByOtherHost reports whether the message of a failed import names another host, which uses the
// pool or did not export it.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_pool.c (zpool_import_props)
func UsedByOtherHost(message string) bool {
	return strings.Contains(message, "another system") || strings.Contains(message, "is imported on")
}
