package decide

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRenameEvents expects that a copy is renamed only if nothing speaks against it.
func TestRenameEvents(t *testing.T) {
	t.Parallel()
	proved := RenameFacts{Follow: true, CopyExists: true, CopyHasBase: true, SourceHasBase: true}
	require.Equal(t, RenameProved, proved.Event())
	tests := map[RenameEvent]func(*RenameFacts){
		CopyAtNewName: func(f *RenameFacts) {
			f.NameExists, f.NameHasBase, f.CopyExists, f.CopyHasBase = true, true, false, false
		},
		CopyMissing:         func(f *RenameFacts) { f.CopyExists, f.CopyHasBase = false, false },
		RenameUnwanted:      func(f *RenameFacts) { f.Follow = false },
		RenameNameTaken:     func(f *RenameFacts) { f.NameExists = true },
		RenameParentMissing: func(f *RenameFacts) { f.ParentMissing, f.NameExists = true, true },
		RenameOtherData:     func(f *RenameFacts) { f.OtherData, f.NameExists = "vault/a/mine", true },
		RenameOtherKey:      func(f *RenameFacts) { f.OtherKey, f.NameExists = "another key", true },
	}
	for want, change := range tests {
		f := proved
		change(&f)
		require.Equal(t, want, f.Event())
	}
	for _, change := range []func(*RenameFacts){
		func(f *RenameFacts) { f.CopyHasBase = false },
		func(f *RenameFacts) { f.SourceHasBase = false },
		func(f *RenameFacts) { f.Claimed = true },
		func(f *RenameFacts) { f.NameExists, f.NameHasBase, f.Claimed = true, true, true }, // two datasets have the snapshot
	} {
		f := proved
		change(&f)
		require.Equal(t, RenameUnproved, f.Event())
	}
}

// renameMachine returns the state machine of copies' names.
func renameMachine() Machine {
	return Machine{
		Name:   "Name of a copy",
		States: []string{string(CopyNamed), string(CopyOutdated)},
		Events: []string{string(SourceRenamed), string(SourceRenamedBack), string(CopyAtNewName), string(CopyMissing), string(RenameProved), string(RenameUnwanted),
			string(RenameUnproved), string(RenameNameTaken), string(RenameParentMissing), string(RenameOtherData), string(RenameOtherKey)},
		Next: func(state, event string) (string, error) {
			next, err := NextRename(RenameState(state), RenameEvent(event), &RenameFacts{})
			return string(next), err
		},
	}
}
