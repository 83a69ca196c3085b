package retention

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	toml "github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/calendar"
)

// zones have days of 22 to 26 hours, hours that start at half past, and clock changes of half an
// hour, at midnight and after it.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Antarctica/Troll",
	"America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Africa/Casablanca"}

func zone(t testing.TB, name string) (z calendar.Zone) {
	t.Helper()
	require.NoError(t, z.UnmarshalText([]byte(name)))
	return z
}

// calendarLabel returns the period of a time as a wall calendar shows it. For an hour that occurs
// twice, it includes which of the two it is.
func calendarLabel(at time.Time, z calendar.Zone, rule string) string {
	at = at.In(z.Location())
	if rule == "weekly" {
		year, week := at.ISOWeek()
		return fmt.Sprint(year, week)
	}
	return at.Format(map[string]string{"hourly": "2006-01-02 15 -0700", "daily": "2006-01-02", "monthly": "2006-01", "yearly": "2006"}[rule])
}

// clockChanges returns points around clock changes in some zone.
func clockChanges(r *rand.Rand, n int) []Point {
	days := []time.Time{
		time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 4, 3, 0, 0, 0, 0, time.UTC), time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC), time.Date(2026, 10, 31, 0, 0, 0, 0, time.UTC),
		time.Date(2018, 11, 3, 0, 0, 0, 0, time.UTC), time.Date(2010, 11, 6, 0, 0, 0, 0, time.UTC),
		time.Date(2011, 12, 28, 0, 0, 0, 0, time.UTC), time.Date(2026, 2, 14, 0, 0, 0, 0, time.UTC),
	}
	at := days[r.IntN(len(days))].Add(time.Duration(r.IntN(1440)) * time.Minute)
	var out []Point
	for i := range n {
		at = at.Add(time.Duration(r.IntN(100)) * time.Minute)
		if r.IntN(40) == 0 {
			at = at.Add(time.Duration(r.IntN(60)) * time.Hour)
		}
		out = append(out, Point{Name: fmt.Sprintf("s%03d", i), Time: at, Order: uint64(i)})
	}
	return out
}

func zonedGrid(r *rand.Rand, z calendar.Zone) *Grid {
	return &Grid{Timezone: z, Last: r.IntN(4), Hourly: r.IntN(40), Daily: r.IntN(8), Weekly: r.IntN(4), Monthly: r.IntN(3), Yearly: r.IntN(2)}
}

// TestKeepInZones expects that the policy keeps the newest snapshot of each of the newest periods
// in a zone. Pruning after each snapshot has the same result as pruning once.
func TestKeepInZones(t *testing.T) {
	t.Parallel()
	for _, name := range zones {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, z := rand.New(rand.NewPCG(16, 2026)), zone(t, name)
			for range 20 {
				g, all := zonedGrid(r, z), clockChanges(r, 120)
				want := map[string]bool{}
				for _, rule := range g.Rules() {
					seen := map[string]bool{}
					for i, p := range slices.Backward(all) {
						of := calendarLabel(p.Time, z, rule.Name)
						if rule.Name == "last" {
							of = fmt.Sprint(i)
						}
						if !seen[of] && len(seen) < rule.Count {
							want[p.Name] = true
						}
						seen[of] = true
					}
				}
				require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(g.Keep(all))), "%v", g)
				var have []Point
				for _, p := range all {
					have = append(have, p)
					kept := g.Keep(have)
					have = slices.DeleteFunc(have, func(p Point) bool { return kept[p.Name] == "" })
				}
				require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(g.Keep(have))), "%v", g)
			}
		})
	}
}

// TestFilledHasEveryPeriod expects that the points that stand for future snapshots include one in
// every period, even a short one.
func TestFilledHasEveryPeriod(t *testing.T) {
	t.Parallel()
	for _, name := range zones {
		z := zone(t, name)
		for _, from := range []time.Time{time.Date(2010, 10, 20, 3, 17, 0, 0, time.UTC), time.Date(2011, 11, 20, 0, 0, 0, 0, time.UTC),
			time.Date(2018, 10, 20, 0, 0, 0, 0, time.UTC), time.Date(2026, 1, 30, 12, 0, 0, 0, time.UTC), time.Date(2026, 9, 20, 0, 0, 0, 0, time.UTC)} {
			for rule, g := range map[string]*Grid{"hourly": {Hourly: 2000}, "daily": {Daily: 80}, "weekly": {Weekly: 12}, "monthly": {Monthly: 4}, "yearly": {Yearly: 2}} {
				g.Timezone = z
				step := 6 * time.Hour
				if rule == "hourly" {
					step = 27 * time.Minute
				}
				for to := from.AddDate(0, 0, 70); to.Before(from.AddDate(0, 0, 71)); to = to.Add(25 * time.Minute * 20) {
					have := map[string]bool{}
					for _, p := range g.filled(from, to) {
						have[calendarLabel(p.Time, z, rule)] = true
					}
					for at := from; at.Before(to); at = at.Add(step) {
						of := calendarLabel(at, z, rule)
						require.True(t, have[of], "%s: %s %s", name, rule, of)
					}
				}
			}
			few := &Grid{Timezone: z, Daily: 30} // for the number of periods that the rule keeps
			seen := map[string]bool{}
			for _, p := range few.filled(from, from.AddDate(0, 0, 70))[1:] {
				seen[calendarLabel(p.Time, z, "daily")] = true
			}
			require.GreaterOrEqual(t, len(seen), 30, name)
		}
	}
}

// TestDaysInZone expects the days of Berlin, whose midnight is at 22:00 or 23:00 UTC. The day of
// the clock change has 25 hours.
func TestDaysInZone(t *testing.T) {
	t.Parallel()
	points := []Point{
		{Name: "sat", Time: time.Date(2026, 10, 24, 21, 59, 0, 0, time.UTC), Order: 1}, // 23:59
		{Name: "sun-first", Time: time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC), Order: 2},
		{Name: "sun-2h-summer", Time: time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC), Order: 3}, // 02:30
		{Name: "sun-2h-winter", Time: time.Date(2026, 10, 25, 1, 30, 0, 0, time.UTC), Order: 4}, // 02:30 again
		{Name: "sun-last", Time: time.Date(2026, 10, 25, 22, 59, 0, 0, time.UTC), Order: 5},     // 23:59
		{Name: "mon", Time: time.Date(2026, 10, 25, 23, 0, 0, 0, time.UTC), Order: 6},
	}
	kept := func(g *Grid) []string { return slices.Sorted(maps.Keys(g.Keep(points))) }
	berlin := zone(t, "Europe/Berlin")
	require.Equal(t, []string{"mon", "sat", "sun-last"}, kept(&Grid{Timezone: berlin, Daily: 3}))
	require.Equal(t, []string{"mon", "sun-first"}, kept(&Grid{Daily: 3}))
	require.Len(t, kept(&Grid{Timezone: berlin, Hourly: 6}), 6, "a repeated hour counts twice")
}

func TestZone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"local", "UTC", "Europe/Berlin"} {
		z := zone(t, text)
		require.Equal(t, text, z.String())
	}
	for _, text := range []string{"", "Local", "Mars/Phobos", "../etc/passwd", "europe"} {
		require.Error(t, new(calendar.Zone).UnmarshalText([]byte(text)), text)
	}
	require.Equal(t, time.UTC, calendar.Zone{}.Location())
	require.Equal(t, time.Local, zone(t, "local").Location())
	text, err := toml.Marshal(Grid{Daily: 1})
	require.NoError(t, err)
	require.Equal(t, "daily = 1\n", string(text))
	require.Equal(t, "{Europe/Berlin 0 0 2 0 0 0 []}", fmt.Sprintf("%v", Grid{Timezone: zone(t, "Europe/Berlin"), Daily: 2}), "retention compares policies by this text")
}
