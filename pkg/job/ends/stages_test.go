package ends_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/transport"
)

// quiet is a Watcher that reports nothing.
type quiet struct{}

func (quiet) Activity(string) func() { return func() {} }
func (quiet) Log(string)             {}

var errNoHost = errors.New("no host answers")

// noHost refuses each connection.
type noHost struct{}

func (noHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return nil, errNoHost }

// TestPrepareSearchesOnlyIfNecessary expects no connection for a path before the move if ssh always works, or if the job
// is refused.
func TestPrepareSearchesOnlyIfNecessary(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, tt := range map[string]struct {
		wire     string
		dryRun   bool
		admit    error
		searches bool
	}{
		"ssh always works": {},
		"ssh is excluded":  {wire: "tls", searches: true},
		"the plan is all":  {dryRun: true, searches: true},
		"refused":          {wire: "tls", admit: refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			facts := hosts.Facts{SSHLocal: "192.0.2.2", SSHPeer: "192.0.2.1", Boot: "1"}
			e := &ends.Ends{Source: ends.End{Conn: jobtest.Connect(noHost{}, ""), Facts: facts}, Target: ends.End{Conn: jobtest.Connect(noHost{}, "beta"), Facts: facts}}
			require.NoError(t, e.Choose(transport.Settings{Wire: tt.wire}, quiet{}.Log))
			planned := false
			err := e.Prepare(t.Context(), quiet{}, &ends.Stages{
				Survey: func(context.Context) error { return nil }, Admit: func() error { return tt.admit }, Moves: func() bool { return true },
				Evaluate: func() {}, DryRun: tt.dryRun, Planned: func() { planned = true },
			})
			if tt.searches {
				require.ErrorIs(t, err, errNoHost)
				require.False(t, planned)
				return
			}
			require.ErrorIs(t, err, tt.admit)
			require.True(t, planned)
			require.False(t, e.PathChanged())
		})
	}
}
