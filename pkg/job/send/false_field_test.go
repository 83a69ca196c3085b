package send

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/testenv"
)

// TestJobSurvivesFalseFieldInAnswers expects that if a host lies in one field of a reply,
// the job ends soon and with a report.
func TestJobSurvivesFalseFieldInAnswers(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(40, 300, 1500)
	seed := rand.Uint64()
	if s := os.Getenv("ZXFER_TEST_SEED"); s != "" {
		_, err := fmt.Sscan(s, &seed)
		require.NoError(t, err)
	}
	t.Logf("ZXFER_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	lies := []any{nil, -1, 0, 1, uint64(1<<64 - 1), int64(1) << 60, "", "0", "-1", "18446744073709551615", "@", "#", "src/a", "dst/a", "src/a@s1", "\x1b[2J", "on", "off",
		"filesystem", "volume", []any{}, map[string]any{}, []any{nil}, map[string]any{"value": "1"}, true, "1-c740b4779-e8-789c636064000310a501c49c50360710a715e5e7a69766a63040c1ec"}
	did := 0
	for range rounds {
		which, leaf, lie := random.IntN(10), random.IntN(150), lies[random.IntN(len(lies))]
		told := ""
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"s1", "s2"}, "src/a/b": {"s1"}, "dst": nil})
		w.Memory.Copy("src/a", "dst/a", "s1")
		w.Memory.Set("src/a", "recordsize", "131072")
		h := &jobtest.LyingHost{World: w, Alter: func(n int, body any) any {
			if n%10 == which {
				i := leaf % countValues(body)
				told = fmt.Sprintf("answer %d, value %d of %v: %v", n, i, body, lie)
				did++
				return replaceValue(body, &i, lie)
			}
			return body
		}}
		req := sendRequest(func(s *Request) {
			s.Source.Host, s.Target.Host, s.Hold = "beta", "beta", "t"
			if random.IntN(2) == 0 {
				s.TakeSnapshot = "now"
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
		r, err := Run(ctx, req, hosts.New(h), Quiet{})
		require.NoError(t, ctx.Err(), "%s: it took too long", told)
		cancel()
		if err != nil {
			require.Contains(t, []fault.Class{fault.Failed, fault.Refused, fault.Interrupted, fault.Usage}, fault.ClassOf(err), told)
		}
		_, err = json.Marshal(r)
		require.NoError(t, err, told)
	}
	require.Greater(t, did, rounds/4)
}

func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += countValues(e)
		}
	case []any:
		for _, e := range v {
			n += countValues(e)
		}
	}
	return n
}

// replaceValue replaces the i-th value with a false value.
func replaceValue(v any, i *int, lie any) any {
	*i--
	if *i == -1 {
		return lie
	}
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			v[k] = replaceValue(v[k], i, lie)
		}
	case []any:
		for k := range v {
			v[k] = replaceValue(v[k], i, lie)
		}
	}
	return v
}
