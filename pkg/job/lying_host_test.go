package job

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/mux"
)

// lyingHost is a host behind a remote shell whose agent's replies are altered.
type lyingHost struct {
	world *world
	alter func(n int, body any) any // alters the n-th reply
}

func (h *lyingHost) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	client, here := net.Pipe()
	there, server := net.Pipe()
	go func() {
		_ = (&agent.Server{Host: h.world, Version: "1"}).Serve(context.WithoutCancel(ctx), server, server)
		_ = server.Close()
	}()
	go func() {
		_ = h.pass(bufio.NewReader(there), there, here)
		_, _ = here.Close(), there.Close()
	}()
	return agent.NewRemote(ctx, l.Host, client, func(string) {})
}

// pass passes on the hello, the requests, and then altered messages.
func (h *lyingHost) pass(in *bufio.Reader, there, here net.Conn) error {
	hello := ""
	for line := ""; len(line) < 2; hello += line {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
	}
	toAgent, toClient := mux.New(there, ""), mux.New(here, hello)
	go func() { _ = toAgent.Run(in) }()
	go func() {
		_ = toClient.Run(here)
		_ = there.Close()
	}()
	go func() { _, _ = io.Copy(toAgent.Control(), toClient.Control()) }()
	messages, err := zstd.NewReader(toAgent.Control(), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	altered, err := zstd.NewWriter(toClient.Control(), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstd.MinWindowSize))
	if err != nil {
		return err
	}
	for n := 0; ; {
		var length [4]byte
		if _, err := io.ReadFull(messages, length[:]); err != nil {
			return err
		}
		text := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(messages, text); err != nil {
			return err
		}
		var m struct {
			Kind string `json:"kind"`
			ID   uint64 `json:"id"`
			Body any    `json:"body"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return err
		}
		if m.Kind == "result" && m.Body != nil {
			m.Body = h.alter(n, m.Body)
			n++
			var err error
			if text, err = json.Marshal(m); err != nil {
				return err
			}
		}
		if _, err := altered.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
			return err
		}
		if err := altered.Flush(); err != nil {
			return err
		}
	}
}

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
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"s1", "s2"}, "src/a/b": {"s1"}, "dst": nil})
		w.host.Copy("src/a", "dst/a", "s1")
		w.host.Set("src/a", "recordsize", "131072")
		h := &lyingHost{world: w, alter: func(n int, body any) any {
			if n%10 == which {
				i := leaf % countValues(body)
				told = fmt.Sprintf("answer %d, value %d of %v: %v", n, i, body, lie)
				did++
				return replaceValue(body, &i, lie)
			}
			return body
		}}
		req := sendRequest(func(s *Send) {
			s.Source.Host, s.Target.Host, s.Hold = "beta", "beta", "t"
			if random.IntN(2) == 0 {
				s.TakeSnapshot = "now"
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
		r, err := RunSend(ctx, req, hosts.New(h), silent{})
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
