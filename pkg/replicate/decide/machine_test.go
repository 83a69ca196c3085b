package decide

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
)

// Machine is a state machine, for tests and documentation.
type Machine struct {
	Name           string
	States, Events []string
	// Next returns the next state. An error means that the event is refused.
	Next func(state, event string) (string, error)
}

// rolesMachine is the machine of Roles: commands, and changes that a command observes.
func rolesMachine() Machine {
	m := Machine{Name: "Roles of source and copy", Events: []string{string(RunEvent), string(PromoteEvent), string(PromoteAnyway), string(SwitchEvent), string(AbortEvent),
		"last increment arrived", "source demoted", "source is lost", "source returns", "source claims its role", "another fail over"}}
	next := map[Roles]map[string]Roles{
		Normal:       {string(PromoteAnyway): Promoted, string(SwitchEvent): Handover, "source is lost": SourceLost},
		SourceLost:   {string(PromoteEvent): PromotedLost, string(PromoteAnyway): PromotedLost, "source returns": Normal},
		Handover:     {string(AbortEvent): Normal, "last increment arrived": Switching, "source is lost": SourceLost, "source claims its role": Normal},
		Switching:    {"source demoted": Normal, "source is lost": PromotedLost, "source claims its role": TwoSources},
		Promoted:     {"source demoted": Normal, "source is lost": PromotedLost, "source claims its role": TwoSources},
		PromotedLost: {"source returns": Promoted},
		TwoSources:   {},
		Contradicted: {},
	}
	m.Next = func(state, event string) (string, error) {
		if slices.Index(m.Events, event) < 5 {
			if err := PermitRoles(Roles(state), RoleEvent(event)); err != nil {
				return state, err
			}
		}
		if event == "another fail over" && state != string(TwoSources) {
			return string(Contradicted), nil
		}
		return string(cmp.Or(next[Roles(state)][event], Roles(state))), nil
	}
	for _, s := range []Roles{Normal, SourceLost, Handover, Switching, Promoted, PromotedLost, TwoSources, Contradicted} {
		m.States = append(m.States, string(s))
	}
	return m
}

const renewStates = "UPDATE_GOLDEN=1 go test ./pkg/replicate/decide -run TestStatesPage"

// machines returns all state machines of the package.
func machines() []Machine {
	return []Machine{rolesMachine(), pauseMachine(), mailMachine(), diskMachine(), renameMachine(), receivedMachine()}
}

// TestStatesPage enumerates every event in every state, and expects docs/dev/states.md to show the
// results. It requires that every refusal has a hint and that every state can be reached.
func TestStatesPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# States\n\nRead this page if you change `pkg/replicate/decide`. It lists what each event does in each state. A test writes it:\n\n    " +
		renewStates + "\n\nA dash means that the event changes nothing. *refused* means that the command ends with exit code 3.\n")
	for _, m := range machines() {
		fmt.Fprintf(&b, "\n## %s\n\n| state | %s |\n|---|%s\n", m.Name, strings.Join(m.Events, " | "), strings.Repeat("---|", len(m.Events)))
		reached := []string{m.States[0]}
		for _, state := range m.States {
			fmt.Fprintf(&b, "| **%s** |", state)
			for _, event := range m.Events {
				next, err := m.Next(state, event)
				switch {
				case err != nil:
					require.Equal(t, fault.Refused, fault.ClassOf(err), "%s, %s", state, event)
					require.NotEmpty(t, fault.HintOf(err), "%s, %s: %v", state, event, err)
					next = "refused"
				case next == state:
					next = "–"
				default:
					require.Contains(t, m.States, next, "%s, %s", state, event)
					reached = append(reached, next)
				}
				fmt.Fprintf(&b, " %s |", next)
			}
			b.WriteString("\n")
		}
		for _, state := range m.States {
			require.True(t, slices.Contains(reached, state), "%s: no event leads to %q", m.Name, state)
		}
	}
	page := filepath.Join(testenv.Root(t), "docs", "dev", "states.md")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o644))
		return
	}
	raw, err := os.ReadFile(page)
	if !errors.Is(err, os.ErrNotExist) || len(machines()) > 0 {
		require.NoError(t, err)
		require.Equal(t, b.String(), string(raw), "docs/dev/states.md is stale; run: %s", renewStates)
	}
}
