package testenv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type inner struct {
	N    int `json:"n,omitempty"`
	Next *outer
}

type outer struct {
	inner
	Names  []string         `json:"names"`
	ByName map[string]inner `json:"by_name"`
	At     time.Time        `json:"at,omitzero"`
	Hidden string           `json:"-"`
	Any    any              `json:"any"`
}

func TestJSONFields(t *testing.T) {
	t.Parallel()
	require.Equal(t, `.n? int
.Next ...
.names[] string
.by_name{}.n? int
.by_name{}.Next ...
.at? custom, empty "0001-01-01T00:00:00Z"
.any any
`, JSONFields(&outer{}))
}
