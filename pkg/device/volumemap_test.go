package device

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVolumeHoles applies random changes as zfs send names them: all holes, and the changed blocks. The
// volume grows, shrinks and loses interrupted copies. Holes that the target has already are not
// zeroed again.
func TestVolumeHoles(t *testing.T) {
	t.Parallel()
	const block = 16 << 10
	random := rand.New(rand.NewPCG(3, 4))
	path := filepath.Join(t.TempDir(), "vm.raw")
	var blocks []byte // the fill of each block, 0 for a hole
	var held VolumeSnapshot
	for round := range 20 {
		before := bytes.Clone(blocks)
		size := 100 + 20*random.IntN(20)
		if size < len(blocks) {
			blocks = blocks[:size]
		}
		blocks = append(blocks, make([]byte, size-len(blocks))...)
		for range 1 + random.IntN(8) {
			from, fill := random.IntN(size), byte(random.IntN(3)*(round+1))
			for i := from; i < min(size, from+random.IntN(30)); i++ {
				blocks[i] = fill
			}
		}
		snapshot := volumeSnapshotOf("s", uint64(round+1), int64(size)*block)
		var changes []volumeChange
		zeros := int64(0) // holes that are next to data, in the same granule
		last := bytes.LastIndexFunc(blocks, func(r rune) bool { return r != 0 }) + 1
		if last < size { // the end comes first
			changes = append(changes, volumeChange{int64(last) * block, int64(size-last) * block, 0})
		}
		for i, fill := range blocks {
			was := byte(0)
			if i < len(before) {
				was = before[i]
			}
			at, n := int64(i)*block, len(changes)-1
			switch {
			case fill == 0 && i < last && n >= 0 && changes[n].fill == 0 && changes[n].off+changes[n].n == at:
				changes[n].n += block // one record frees adjacent holes
			case fill != 0 && (fill != was || held.GUID == 0), fill == 0 && i < last:
				changes = append(changes, volumeChange{at, block, fill})
			}
			const around = minGranule / block
			group := before[min(i/around*around, len(before)):min(i/around*around+around, len(before))]
			if fill == 0 && len(bytes.Trim(group, "\x00")) > 0 {
				zeros += block
			}
		}
		task := VolumeTask{Base: held, Snapshot: snapshot}
		var a Account
		for stop := random.IntN(2 * (len(changes) + 1)); ; stop = len(changes) + 100 {
			task.Target = inspectFile(t, path)
			v, err := OpenVolume(t.Context(), task)
			require.NoError(t, err, round)
			all := runSteps(t, v, changes, stop)
			a = v.Account()
			v.inFlight.Wait()
			require.NoError(t, v.f.Close())
			if all {
				break
			}
		}
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Len(t, got, size*block)
		for i, fill := range blocks {
			require.True(t, bytes.Equal(bytes.Repeat([]byte{fill}, block), got[i*block:(i+1)*block]), "round %d, block %d", round, i)
		}
		if held.GUID != 0 {
			require.LessOrEqual(t, a.Zeros, zeros, "round %d", round)
		}
		held = snapshot
	}
}

func TestDataMap(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, minGranule, granule(1))
	require.EqualValues(t, minGranule, granule(minGranule*maxGranules))
	require.EqualValues(t, 2*minGranule, granule(minGranule*maxGranules+1))
	require.Equal(t, maxGranules/8, dataMapBytes(maxVolume))
	m := newDataMap(4*minGranule + 512)
	m.mark(minGranule-1, 2)
	m.mark(4*minGranule+511, 1)
	m.mark(0, 0)
	require.Equal(t, []Range{{100, 2*minGranule - 100}, {4 * minGranule, 512}}, m.data(100, 4*minGranule+412))
	require.Empty(t, m.data(2*minGranule, 2*minGranule))
	m.clear(1, 2*minGranule-1)
	m.clear(4*minGranule, 512)
	require.Equal(t, []Range{{0, minGranule}}, m.data(0, m.size))
	m.mark(3*minGranule, 1)
	large := m.resized(minGranule * maxGranules * 4)
	require.Equal(t, []Range{{0, 4 * minGranule}}, large.data(0, large.size))
	require.Equal(t, []Range{{0, 4 * minGranule}}, large.resized(m.size).data(0, m.size), "a smaller map knows no more")
}
