package device

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport/tcp"
)

// FuzzJournal expects that any journal yields only existing blocks, each from a complete record,
// and that the journal of another copy yields no blocks.
func FuzzJournal(f *testing.F) {
	const size, block = 100 << 10, 4096
	want := journalHeader{Version: journalVersion, Target: "t", Source: "s", Size: size, Block: block}
	dir := f.TempDir()
	file, err := os.Create(filepath.Join(dir, "seed"))
	require.NoError(f, err)
	defer file.Close()
	j := &Journal{f: file, grid: newGrid(size, BlockHash{Block: block})}
	require.NoError(f, j.create(want))
	f.Add([]byte(nil))
	add := func() {
		b, err := os.ReadFile(file.Name())
		require.NoError(f, err)
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	add()
	require.NoError(f, j.Add(storedBlocks([]storedBlock{{Index: 3, Sum: Sum{1}}, {Index: 24, Sum: Sum{2}}, {Index: 3, Sum: Sum{3}}})))
	add()
	f.Add([]byte("{\"version\":1,\"block\":0}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := os.Create(filepath.Join(t.TempDir(), "j"))
		require.NoError(t, err)
		defer file.Close()
		_, err = file.Write(b)
		require.NoError(t, err)
		_, err = file.Seek(0, 0)
		require.NoError(t, err)
		j := &Journal{f: file, grid: newGrid(size, BlockHash{Block: block})}
		reason, err := j.load(want, journalResume)
		require.NoError(t, err)
		if reason != "" {
			require.Zero(t, j.recorded)
			return
		}
		require.LessOrEqual(t, j.good, int64(len(b)))
		require.LessOrEqual(t, j.recorded, size/block)
		require.LessOrEqual(t, int64(j.recorded)*recordSize, j.good)
		stored := slices.DeleteFunc(slices.Clone(j.sums), func(s Sum) bool { return s == Sum{} })
		require.Len(t, stored, j.recorded)
	})
}

// FuzzParseTools parses output of lvs and uevent files of the kernel.
func FuzzParseTools(f *testing.F) {
	f.Add(`{"report":[{"lv":[{"lv_dm_path":"/dev/mapper/vg-s","lv_attr":"sri-a-s---","data_percent":"12.50"}]}],"log":[]}`)
	f.Add(`{"report":[{"lv":[{"lv_dm_path":"/x","lv_attr":"sri-I","data_percent":"NaN"}]}]}`)
	f.Add(`{"report":[{"lv":[{"lv_dm_path":"/x","lv_attr":"sri-a","data_percent":"-1e308"}]}]}`)
	f.Add("MAJOR=8\nDEVNAME=sda\nDEVNAME=cciss/c0d0\n=\nx")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := parseLVS([]byte(s)); err == nil {
			require.Equal(t, byte('/'), r.Path[0])
			require.GreaterOrEqual(t, r.Full, 0.0)
			require.False(t, math.IsNaN(r.Full))
			require.True(t, r.Lost || r.Full < 100)
		}
		env := parseUevent(s)
		require.LessOrEqual(t, len(env), bytes.Count([]byte(s), []byte("="))+1)
		for k := range env {
			require.NotContains(t, k, "=")
			require.False(t, strings.ContainsRune(env[k], '\n'))
		}
	})
}

// FuzzPresentBlocks expects that frames of present blocks are accepted only for existing blocks in
// ascending order.
func FuzzPresentBlocks(f *testing.F) {
	f.Add(uint64(0), make([]byte, 2*tcp.SumSize), uint64(2), make([]byte, tcp.SumSize))
	f.Add(uint64(7), []byte{}, uint64(1<<63), make([]byte, tcp.SumSize))
	f.Add(uint64(3), make([]byte, tcp.SumSize), uint64(3), make([]byte, tcp.SumSize))
	f.Add(uint64(1<<64-1), make([]byte, 5), uint64(0), []byte{1})
	f.Fuzz(func(t *testing.T, at uint64, one []byte, then uint64, two []byte) {
		const count = 7
		h := newPresentBlocks(count)
		first, second := h.parse(at, one), error(nil)
		if first == nil {
			second = h.parse(then, two)
		}
		for _, err := range []error{first, second} {
			if err != nil {
				require.ErrorIs(t, err, tcp.ErrTampered)
			}
		}
		require.LessOrEqual(t, h.known, int64(count))
		require.True(t, h.sums == nil || len(h.sums) == count)
		if first == nil && second == nil {
			require.GreaterOrEqual(t, then, at+uint64(len(one)/tcp.SumSize))
		}
	})
}
