package freeze

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestInvalidSpecs(t *testing.T) {
	t.Parallel()
	for why, s := range map[string]Spec{
		"kind":            {Kind: "oracle"},
		"socket":          {Kind: GuestAgent},
		"absolute":        {Kind: GuestAgent, Socket: "qga.sock"},
		"no effect":       {Kind: GuestAgent, Socket: "/run/qga", RunAs: "nobody"},
		"freeze":          {Kind: Command, Thaw: []string{"/bin/true"}},
		"thaw":            {Kind: Command, Freeze: []string{"/bin/true"}},
		"absolute path":   {Kind: Command, Freeze: []string{"true"}, Thaw: []string{"/bin/true"}},
		"name":            {Kind: PostgreSQL, Name: "a b"},
		"user":            {Kind: MySQL, User: "-x"},
		"host":            {Kind: PostgreSQL, Host: "a\x00b"},
		"port":            {Kind: PostgreSQL, Port: 70000},
		"credentials":     {Kind: MySQL, Credentials: "my.cnf"},
		"timeout":         {Kind: PostgreSQL, Timeout: time.Hour},
		"database has no": {Kind: MySQL, Database: "x"},
	} {
		if s.Timeout == 0 {
			s.Timeout = time.Second
		}
		require.ErrorContains(t, s.Check(), strings.Fields(why)[0], why)
	}
	good := Spec{Kind: PostgreSQL, Host: "/run/postgresql", Port: 5433, User: "zxfer", Credentials: "/etc/zxfer/pgpass", RunAs: "postgres", Timeout: time.Second}
	require.NoError(t, good.Check())
	require.Error(t, (&Spec{Kind: PostgreSQL}).Check(), "no time")
}

func TestRequestCheck(t *testing.T) {
	t.Parallel()
	w := Application{Spec: Spec{Kind: PostgreSQL, Timeout: time.Second}, Datasets: []string{"tank/a"}}
	good := Request{Job: "j", Snapshots: []string{"tank/a@x"}, Applications: []Application{w}}
	require.NoError(t, good.Check())
	for _, q := range []Request{
		{Job: "j", Snapshots: []string{"tank/a@x"}},
		{Job: "a b", Snapshots: []string{"tank/a@x"}, Applications: []Application{w}},
		{Job: "j", Snapshots: []string{"tank/b@x"}, Applications: []Application{w}},
		{Job: "j", Snapshots: []string{"-o@x"}, Applications: []Application{w}},
		{Job: "j", Snapshots: []string{"tank/a@x"}, Applications: make([]Application, maxSpecs+1)},
	} {
		require.Error(t, q.Check(), q)
	}
}

// TestMarks expects that a snapshot is marked only if all of its applications were frozen.
func TestMarks(t *testing.T) {
	t.Parallel()
	q := Request{Snapshots: []string{"t@x", "t/pg@x", "t/vm@x", "t/both@x"}, Applications: []Application{
		{Spec: Spec{Kind: PostgreSQL}, Datasets: []string{"t/pg", "t/both"}},
		{Spec: Spec{Kind: GuestAgent, Name: "web"}, Datasets: []string{"t/vm", "t/both"}},
	}}
	require.Equal(t, map[string][]string{"postgresql": {"t/pg@x"}, "web": {"t/vm@x"}, "postgresql,web": {"t/both@x"}}, Marks(q, make([]Outcome, 2)))
	require.Equal(t, map[string][]string{"postgresql": {"t/pg@x"}}, Marks(q, []Outcome{{}, {Error: "no"}}))
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", " a\n", "\x1b[2J", "\x01 b \x02", "\xff\xfe", strings.Repeat("é ", 3000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := Clean(s)
		require.Equal(t, c, Clean(c))
		require.LessOrEqual(t, len(c), maxText)
	})
}
