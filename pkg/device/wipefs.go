package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
)

// runWipefs lists the signatures of a path. --no-act prevents any erasure.
func runWipefs(ctx context.Context, path string) ([]byte, error) {
	out, err := runTool(ctx, "wipefs", "--no-act", "--json", "--output", "OFFSET,TYPE,UUID,LABEL", path)
	if errors.Is(err, exec.ErrNotFound) {
		err = fault.Refusef("install util-linux", "%w", err)
	}
	return out, err
}

// partitionTables returns libblkid's names of partition tables. gpt precedes PMBR,
// the protective table that accompanies it.
func partitionTables() []string {
	return []string{"gpt", "dos", "PMBR", "mac", "sun", "sgi", "bsd", "solaris_x86", "unixware", "minix", "ultrix", "atari"}
}

// parseWipefs parses the output of wipefs --json. Signatures of the same type and
// UUID, such as the labels of a ZFS member, become one with the first and the last
// offset.
func parseWipefs(raw []byte, device string) ([]Signature, error) {
	if strings.TrimSpace(string(raw)) == "" {
		return nil, nil // no signatures: util-linux before 2.39 prints nothing
	}
	var got struct {
		Signatures []struct {
			Offset, Type, UUID, Label string // null becomes ""
		} `json:"signatures"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		return nil, fmt.Errorf("wipefs of %s: %w", device, err)
	}
	var out []Signature
	for _, g := range got.Signatures {
		off, err := strconv.ParseInt(g.Offset, 0, 64)
		if err != nil || off < 0 || g.Type == "" {
			return nil, fmt.Errorf("wipefs of %s: type %q at offset %q", device, g.Type, g.Offset)
		}
		s := Signature{Device: device, Type: g.Type, Offset: off, Label: g.Label, UUID: g.UUID}
		i := slices.IndexFunc(out, func(o Signature) bool { return o.Type == s.Type && o.UUID == s.UUID })
		if i < 0 {
			out = append(out, s)
			continue
		}
		out[i].Last = max(out[i].Offset, out[i].Last, s.Offset)
		out[i].Offset = min(out[i].Offset, s.Offset)
	}
	return out, nil
}
