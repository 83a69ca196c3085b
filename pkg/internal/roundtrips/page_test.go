package roundtrips

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

const renewPage = "UPDATE_GOLDEN=1 go test ./pkg/internal/roundtrips -run TestRoundTrips"

// measured is a command with its round trips after the login, their permitted maximum, and its timeline.
type measured struct {
	name        string
	trips, most float64
	timeline    string
}

// TestRoundTrips counts the round trips of commands. None may take more than permitted, and
// docs/dev/round-trips.md must show their timelines.
func TestRoundTrips(t *testing.T) {
	var all []measured
	for _, scenario := range []func(*testing.T) []measured{sendTo, sendFrom, replicateTo, replicateFrom} {
		all = append(all, scenario(t)...)
	}
	var b strings.Builder
	b.WriteString(`# Round trips

Read this page if you change what zxfer asks other hosts. It lists the calls of commands over a network with a delay, in
round trips after the ssh login. Everything but the network takes no time. A test writes it, and fails if a command takes
longer than the permitted maximum:

    ` + renewPage + `

A login takes some ten round trips. A data connection takes one for TCP and one for its handshake. A stream of more than
14 KB needs further round trips until the congestion window of TCP has grown.

Small streams of several datasets share round trips. A run with a hundred increments, two at a time, takes about 10 if
each has 1 KiB, and about 20 if each has 64 KiB. Another test limits them. Without sharing, they would take 53.

| command | round trips | maximum |
|---|---|---|
`)
	for _, m := range all {
		require.LessOrEqual(t, m.trips, m.most, "%s:\n%s", m.name, m.timeline)
		fmt.Fprintf(&b, "| %s | %.1f | %g |\n", m.name, m.trips, m.most)
	}
	for _, m := range all {
		fmt.Fprintf(&b, "\n## %s\n\n| start | end | activity |\n|---|---|---|\n%s", m.name, m.timeline)
	}
	page := filepath.Join(testenv.Root(t), "docs", "dev", "round-trips.md")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o644))
		return
	}
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(raw), "docs/dev/round-trips.md is stale; run: %s", renewPage)
}
