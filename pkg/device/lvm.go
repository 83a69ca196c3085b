package device

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
)

// LVSnapshot is a temporary snapshot of a logical volume.
type LVSnapshot struct {
	// Path is its device, or its device-mapper path if there is no udev.
	Path string
	name string // "vg/lv"
}

// SnapshotLV takes a snapshot of the logical volume f. size is in lvcreate's format
// ("5G", "10%ORIGIN") and limits the data that can be written to the volume until
// Remove. LVM freezes a mounted file system for a moment, so its state is as
// consistent as after a power failure. The caller must call Remove.
func SnapshotLV(ctx context.Context, f Facts, size string) (*LVSnapshot, error) {
	if f.Kind != KindLVM {
		return nil, fault.Refusef("omit {{lvm-snapshot}}", "%s is not a logical volume", f.Path)
	}
	group, _, ok := strings.Cut(f.Label, "/")
	if !ok || strings.HasPrefix(group, "-") {
		return nil, fmt.Errorf("%s: LVM name %q", f.Path, f.Label)
	}
	amount, err := sizeArgs(size)
	if err != nil {
		return nil, err
	}
	s := &LVSnapshot{name: group + "/zxfer-" + strings.ToLower(rand.Text()[:10])}
	_, lv, _ := strings.Cut(s.name, "/")
	args := append([]string{"--yes", "--quiet", "--snapshot", "--permission", "r", "--name", lv}, amount...)
	if _, err := runTool(ctx, "lvcreate", append(args, f.Label)...); err != nil {
		// lvcreate may have created it before it failed.
		if exists, _ := s.report(context.WithoutCancel(ctx)); exists != nil {
			err = errors.Join(err, s.Remove(ctx))
		}
		return nil, fmt.Errorf("snapshot of %s: %w", f.Label, err)
	}
	r, err := s.report(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot of %s: %w", f.Label, err), s.Remove(ctx))
	}
	s.Path = r.Path
	return s, nil
}

// sizeArgs returns the size options for lvcreate: extents if size is a percentage.
func sizeArgs(size string) ([]string, error) {
	switch {
	case regexp.MustCompile(`^[0-9]+(\.[0-9]+)?[bBsSkKmMgGtTpPeE]?$`).MatchString(size):
		return []string{"--size", size}, nil
	case regexp.MustCompile(`^[0-9]+%(ORIGIN|FREE|VG|PVS)$`).MatchString(size):
		return []string{"--extents", size}, nil
	}
	return nil, fault.Usagef("write a size such as 5G or 10%ORIGIN", "%q is not a valid LVM snapshot size", size)
}

// lvReport holds the properties of a snapshot that lvs reports.
type lvReport struct {
	Path string
	Full float64 // percent
	Lost bool    // out of space, so its data is invalid
}

func (s *LVSnapshot) report(ctx context.Context) (*lvReport, error) {
	raw, err := runTool(ctx, "lvs", "--reportformat", "json", "--options", "lv_dm_path,lv_attr,data_percent", s.name)
	if err != nil {
		return nil, err
	}
	return parseLVS(raw)
}

// parseLVS parses the JSON report of lvs about one volume.
func parseLVS(raw []byte) (*lvReport, error) {
	var got struct {
		Report []struct {
			LV []struct {
				Path string `json:"lv_dm_path"`
				Attr string `json:"lv_attr"`
				Full string `json:"data_percent"`
			} `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		return nil, fmt.Errorf("lvs: %w", err)
	}
	if len(got.Report) != 1 || len(got.Report[0].LV) != 1 {
		return nil, fmt.Errorf("lvs: want one volume, got %q", raw)
	}
	lv := got.Report[0].LV[0]
	if len(lv.Attr) < 5 || !strings.HasPrefix(lv.Path, "/") {
		return nil, fmt.Errorf("lvs: path %q, attributes %q", lv.Path, lv.Attr)
	}
	// lvs(8): the fifth attribute is the state; I and S mean an invalid snapshot.
	r := &lvReport{Path: lv.Path, Lost: strings.ContainsRune("IS", rune(lv.Attr[4]))}
	if lv.Full != "" {
		var err error
		if r.Full, err = strconv.ParseFloat(lv.Full, 64); err != nil || !(r.Full >= 0) { // also rejects NaN
			return nil, fmt.Errorf("lvs: data_percent %q", lv.Full)
		}
		r.Lost = r.Lost || r.Full >= 100
	}
	return r, nil
}

// Intact returns an error if the snapshot ran out of space, which invalidates the
// data read from it. Call it after the last read.
func (s *LVSnapshot) Intact(ctx context.Context) error {
	r, err := s.report(ctx)
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", s.name, err)
	}
	if r.Lost {
		return fault.Failf("use a larger {{lvm-snapshot}} size", "snapshot %s overflowed during the copy: the copy is invalid", s.name)
	}
	return nil
}

// Remove removes the snapshot, even if ctx is canceled.
func (s *LVSnapshot) Remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var err error
	for try := range 5 {
		if _, err = runTool(ctx, "lvremove", "--yes", "--quiet", s.name); err == nil {
			return nil
		}
		// udev may hold the device open for a moment.
		time.Sleep(time.Duration(try+1) * 200 * time.Millisecond)
	}
	return fault.Failf(paste("lvremove", s.name), "cannot remove snapshot %s: %w", s.name, err)
}
