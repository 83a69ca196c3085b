package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/remedy"
)

func TestReadMessage(t *testing.T) {
	t.Parallel()
	good, err := encode(&message{Kind: call, ID: 7, Op: hosts.OpList.Name(), Body: json.RawMessage(`{"dataset":"tank"}`)}, 100)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		in   []byte
		want string // error
	}{
		"whole":                      {good, ""},
		"nothing":                    {nil, "EOF"},
		"truncated length":           {good[:3], "unexpected EOF"},
		"truncated after the length": {good[:4], "unexpected EOF"},
		"truncated message":          {good[:len(good)-1], "unexpected EOF"},
		"too long":                   {[]byte{0xff, 0xff, 0xff, 0xff}, "message of 4294967295 bytes, more than 100"},
		"one too long":               {append([]byte{0, 0, 0, 101}, bytes.Repeat([]byte{' '}, 101)...), "message of 101 bytes, more than 100"},
		"empty":                      {[]byte{0, 0, 0, 0}, "malformed message: unexpected end of JSON input"},
		"two values":                 {[]byte("\x00\x00\x00\x04{}{}"), "malformed message: invalid character '{' after top-level value"},
		"not JSON":                   {[]byte("\x00\x00\x00\x03GET"), "malformed message: invalid character 'G' looking for beginning of value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := readMessage(bytes.NewReader(c.in), 100, unlimitedCost)
			if c.want != "" {
				require.EqualError(t, err, c.want)
				return
			}
			require.NoError(t, err)
			m.cost = 0
			require.Equal(t, &message{Kind: call, ID: 7, Op: hosts.OpList.Name(), Body: json.RawMessage(`{"dataset":"tank"}`)}, m)
		})
	}
	_, err = encode(&message{Kind: logged, Text: strings.Repeat("x", 100)}, 100)
	require.ErrorContains(t, err, "more than 100")
}

// unlimitedCost permits any cost.
func unlimitedCost(*message) int { return 1 << 40 }

func FuzzReadMessage(f *testing.F) {
	for _, m := range []*message{
		{Kind: call, ID: 1, Op: hosts.OpList.Name(), Body: json.RawMessage(`{}`)},
		{Kind: ping, ID: 1<<64 - 1},
		{Kind: result, ID: 1, Error: &failure{Text: "x", Is: []string{"cut"}}},
		{Kind: logged, Text: "\x00\"<>"},
	} {
		raw, err := encode(m, hosts.MaxAnswer)
		require.NoError(f, err)
		f.Add(raw)
		f.Add(raw[:len(raw)-1])
	}
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x04null"))
	f.Add([]byte("\x00\x00\x00\x02{}\x00\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := readMessage(bytes.NewReader(in), 1<<16, unlimitedCost)
		if err != nil {
			return
		}
		raw, err := encode(m, hosts.MaxAnswer)
		require.NoError(t, err)
		again, err := readMessage(bytes.NewReader(raw), hosts.MaxAnswer, unlimitedCost)
		require.NoError(t, err)
		second, err := encode(again, hosts.MaxAnswer)
		require.NoError(t, err)
		require.Equal(t, raw, second)
		if m.Error != nil {
			require.NotPanics(t, func() { _ = m.Error.unpack(remedy.Host{Name: "h"}).Error() })
		}
	})
}

func TestDecodeStrictly(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"tag":"t"}`:              "",
		`{"tag":"t","force":true}`: `json: unknown field "force"`,
		`{"tag":"t"} {}`:           "more than one value",
		`[]`:                       "json: cannot unmarshal array into Go value of type hosts.Tagged",
		``:                         "EOF",
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			var a hosts.Tagged
			err := hosts.Decode([]byte(in), &a)
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, want)
		})
	}
}

func TestReadHello(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want string // version
		err  string
	}{
		"alone":               {hello("1.2"), "1.2", ""},
		"version with blanks": {hello("1.2 (dev)"), "1.2-(dev)", ""},
		"no version":          {hello(""), "unknown", ""},
		"other protocol":      {"zxfer-agent 99 7.0\n", "7.0", "zxfer there is 7.0 and speaks protocol 99, the local one speaks 6"},
		"other text":          {"This account is currently not available.\n", "", "its message: This account is currently not available."},
		"nothing":             {"", "", "EOF"},
		"truncated line":      {"zxfer-agent 6 1.2", "1.2", ""},
		"endless line":        {strings.Repeat("y", 1<<20), "", "its message: " + strings.Repeat("y", 4096)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := readHello(bufio.NewReaderSize(strings.NewReader(c.in), 4096))
			if c.err != "" {
				require.EqualError(t, err, c.err)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, c.want, v)
		})
	}
}

func FuzzReadHello(f *testing.F) {
	f.Add([]byte(hello("1.2")))
	f.Add([]byte("motd\nzxfer-agent 1\nzxfer-agent x y\nzxfer-agent 2 v\n"))
	f.Add([]byte("\n\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		v, err := readHello(bufio.NewReaderSize(r, 16))
		if err == nil {
			require.NotEmpty(t, v)
			require.True(t, bytes.Contains(in, []byte(helloWord)))
		}
	})
}
