package decide

import (
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

// rolesMachine is the machine of Roles for tests and documentation.
func rolesMachine() Machine {
	m := Machine{Name: "Roles of source and copy", Next: func(state, event string) (string, error) {
		next, err := NextRoles(Roles(state), RoleEvent(event))
		return string(next), err
	}}
	for _, s := range []Roles{Normal, SourceLost, Handover, HandoverLost, Switching, Promoted, PromotedLost, TwoSources, Contradicted} {
		m.States = append(m.States, string(s))
	}
	for _, e := range []RoleEvent{RunEvent, PromoteEvent, PromoteAnyway, SwitchEvent, AbortEvent, Arrived, Demoted, LoseEvent, ReturnEvent, ClaimEvent, ForeignEvent} {
		m.Events = append(m.Events, string(e))
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
