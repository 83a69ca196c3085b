package replicate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestBase(t *testing.T) {
	t.Parallel()
	v := func(kind zfs.VersionKind, guid uint64) zfs.Version {
		return zfs.Version{Kind: kind, Name: fmt.Sprint(guid), GUID: guid, CreateTXG: guid}
	}
	source := &zfs.Dataset{Versions: []zfs.Version{v("@", 1), v("#", 2), v("@", 3), v("@", 5)}}
	base, ok := CommonSnapshot(source, &zfs.Dataset{Versions: []zfs.Version{v("@", 1), v("@", 2), v("#", 3), v("@", 4)}})
	require.True(t, ok)
	require.Equal(t, uint64(2), base.GUID, "a bookmark of the source is a base, one of the target is none")
	_, ok = CommonSnapshot(source, &zfs.Dataset{})
	require.False(t, ok)
}
