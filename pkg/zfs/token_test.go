package zfs

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func tokenFixture(t testing.TB, name string) string {
	return strings.TrimSpace(string(fixture(t, name)))
}

// TestParseToken expects the contents that zfs send -nvP -t printed for the same tokens.
func TestParseToken(t *testing.T) {
	t.Parallel()
	incr, err := ParseToken(tokenFixture(t, "token-incr.txt"))
	require.NoError(t, err)
	said := string(fixture(t, "nvP-token-incr.txt"))
	for _, want := range []string{
		fmt.Sprintf("fromguid = %#x\n", incr.FromGUID), fmt.Sprintf("object = %#x\n", incr.Object),
		fmt.Sprintf("offset = %#x\n", incr.Offset), fmt.Sprintf("bytes = %#x\n", incr.Bytes),
		fmt.Sprintf("toguid = %#x\n", incr.ToGUID), fmt.Sprintf("toname = %s\n", incr.ToName),
	} {
		require.Contains(t, said, want)
	}
	require.Equal(t, StreamFlags{}, incr.Flags)

	full, err := ParseToken(tokenFixture(t, "token-full.txt"))
	require.NoError(t, err)
	require.Zero(t, full.FromGUID)
	require.Equal(t, "pa/d@s1", full.ToName)
	require.False(t, full.Saved || full.Redacted)

	raw, err := ParseToken(tokenFixture(t, "token-raw.txt"))
	require.NoError(t, err)
	require.True(t, raw.Flags.Raw)
	lec, err := ParseToken(tokenFixture(t, "token-lec.txt"))
	require.NoError(t, err)
	// The send had -L, but the dataset has no large block.
	require.Equal(t, StreamFlags{Embedded: true, Compressed: true}, lec.Flags)
}

func TestParseTokenFails(t *testing.T) {
	t.Parallel()
	good := tokenFixture(t, "token-full.txt")
	parts := strings.Split(good, "-")
	flipped := []byte(good)
	if flipped[len(flipped)-20] ^= 1; flipped[len(flipped)-20] == '`' {
		flipped[len(flipped)-20] = 'a'
	}
	for _, test := range []struct{ name, token, says string }{
		{"empty", "", "parts"},
		{"short", "1-abc", "got 2 parts"},
		{"version", "2-" + strings.Join(parts[1:], "-"), "version"},
		{"checksum", strings.Join([]string{"1", "zz", parts[2], parts[3]}, "-"), "checksum"},
		{"size", strings.Join([]string{"1", parts[1], "ffffffffff", parts[3]}, "-"), "size"},
		{"other size", strings.Join([]string{"1", parts[1], "10", parts[3]}, "-"), "expected 16"},
		{"hex", strings.Join([]string{"1", parts[1], parts[2], "xyz"}, "-"), "hex"},
		{"truncated", good[:len(good)-8], "checksum"},
		{"flipped", string(flipped), "checksum"},
		{"long", "1-" + strings.Repeat("0", maxToken), "at most"},
		{"not a list", makeToken([]byte("hello, world!!!!")), "encoding"},
		{"empty list", makeToken(nvlist()), "toguid"},
		{"wrong type", makeToken(nvlist(pair("toguid", nvString, []byte("x\x00")))), "toguid"},
		{"no name", makeToken(nvlist(number("toguid", 1), number("object", 1), number("offset", 0), number("bytes", 0))), "toname"},
		{"twice", makeToken(nvlist(number("toguid", 1), number("toguid", 2))), "twice"},
		{"nested", makeToken(nvlist(pair("x", nvList, make([]byte, 24)))), "terminator"},
		{"unterminated", makeToken(nvlist(pair("toname", nvString, []byte("xxxxxxxx")))), "ended by zero"},
		{"array", makeToken(nvlist(pair("a", nvListArray, nil))), "array"},
	} {
		_, err := ParseToken(test.token)
		require.ErrorIs(t, err, &Error{Kind: BadToken}, test.name)
		require.ErrorContains(t, err, test.says, test.name)
	}
}

// TestForgedTokens expects ParseToken to refuse forged tokens: invalid names, numbers beyond
// limits, and lists that ZFS and zxfer could read differently.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	forged := func(changes map[string][]byte) string {
		var pairs [][]byte
		for _, name := range []string{"toguid", "object", "offset", "bytes", "toname"} {
			p := number(name, 1)
			if name == "toname" {
				p = pair(name, nvString, []byte("tank/a@x\x00"))
			}
			if changed, ok := changes[name]; ok {
				p = changed
			}
			pairs = append(pairs, p)
		}
		return makeToken(nvlist(append(pairs, changes["more"])...))
	}
	_, err := ParseToken(forged(nil))
	require.NoError(t, err)
	of := func(name string, p []byte) string { return forged(map[string][]byte{name: p}) }
	nested := nvlist(pair("a", nvList, make([]byte, 24)))[nvHeader:] // the end mark of list a is missing
	for name, tt := range map[string]struct{ token, says string }{
		"no GUID":                      {of("toguid", number("toguid", 0)), "no GUID"},
		"object":                       {of("object", number("object", 1<<48)), "object 281474976710656"},
		"offset":                       {of("offset", number("offset", 1<<63)), "more than"},
		"bytes":                        {of("bytes", number("bytes", 1<<64-1)), "more than"},
		"name without snapshot":        {of("toname", pair("toname", nvString, []byte("tank/a\x00"))), "name a snapshot"},
		"name of a bookmark":           {of("toname", pair("toname", nvString, []byte("tank/a#x\x00"))), "name a snapshot"},
		"name with a path":             {of("toname", pair("toname", nvString, []byte("tank/../a@x\x00"))), "name a snapshot"},
		"name like an option":          {of("toname", pair("toname", nvString, []byte("-i/a@x\x00"))), "name a snapshot"},
		"long name":                    {of("toname", pair("toname", nvString, append(bytes.Repeat([]byte("a"), 300), "@x\x00"...))), "name a snapshot"},
		"name as number":               {of("toname", number("toname", 1)), "toname"},
		"GUID as list":                 {of("toguid", append(pair("toguid", nvList, make([]byte, 24)), 0, 0, 0, 0)), "toguid"},
		"incremental source as string": {of("more", pair("fromguid", nvString, []byte("1\x00"))), "fromguid"},
		"twice":                        {of("more", number("toguid", 2)), "twice"},
		"twice, of another type":       {of("more", pair("toname", nvUint64, make([]byte, 8))), "twice"},
		"twice, after a zero":          {of("more", number("toguid\x00x", 2)), "zero byte"},
		"nested without an end":        {of("more", nested[:len(nested)-4]), "terminator"},
		"nested too deeply":            {of("more", bytes.Repeat(pair("a", nvList, make([]byte, 24)), 20)), "pair"},
		"an array of lists":            {of("more", pair("a", nvListArray, nil)), "array"},
		"too many pairs":               {of("more", bytes.Repeat(pair("a", 1, nil), 20_000)), "expected a hex number of at most 16384"},
		"zlib bomb":                    {of("more", pair("a", nvBytes, make([]byte, 4<<20))), "at most 16384"},
		"zlib bomb of a wrong size":    {sized(of("more", pair("a", nvBytes, make([]byte, 4<<20))), 16<<10), "or more, expected 16384"},
		"truncated zlib":               {truncated(forged(nil)), "does not decompress"},
		"text after the data":          {forged(nil) + "-00", "got 5 parts"},
	} {
		require.Less(t, len(tt.token), 1<<20, name)
		token, err := ParseToken(tt.token)
		require.ErrorIs(t, err, &Error{Kind: BadToken}, name)
		require.ErrorContains(t, err, tt.says, name)
		require.Zero(t, token, name)
	}
}

// TestForgedTokenMemoryIsBounded expects that a forged token costs at most 512 KiB of memory, even if
// it is long or a decompression bomb.
func TestForgedTokenMemoryIsBounded(t *testing.T) {
	bomb := sized(makeToken(nvlist(pair("a", nvBytes, make([]byte, 8<<20)))), maxPacked)
	long := strings.Repeat("0", 16<<20)
	cost := func(token string) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ParseToken(token)
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		return after.TotalAlloc - before.TotalAlloc
	}
	require.Less(t, cost(bomb), uint64(512<<10))
	require.Less(t, cost("1-0-1-"+long), uint64(512<<10))
}

// sized returns a token with a false size of its contents.
func sized(token string, size int) string {
	f := strings.Split(token, "-")
	return fmt.Sprintf("%s-%s-%x-%s", f[0], f[1], size, f[3])
}

// truncated returns a token without the end of its compressed data, with a valid checksum.
func truncated(token string) string {
	f := strings.Split(token, "-")
	data, _ := hex.DecodeString(f[3])
	data = data[:len(data)/2&^3]
	return fmt.Sprintf("1-%x-%s-%x", sumWords(data, binary.LittleEndian), f[2], data)
}

// TestParseTokenUnknownFields expects that unknown fields are skipped.
func TestParseTokenUnknownFields(t *testing.T) {
	t.Parallel()
	token, err := ParseToken(makeToken(nvlist(
		number("toguid", 7), number("object", 1), number("offset", 2), number("bytes", 3),
		pair("toname", nvString, []byte("tank/a@x\x00")),
		pair("savedok", 1, nil), pair("news", 1, nil), pair("int8", 3, []byte{1, 2, 3, 4}),
		pair("book_redact_snaps", 16, // an array of numbers
			make([]byte, 8)),
	)))
	require.NoError(t, err)
	require.Equal(t, Token{ToGUID: 7, ToName: "tank/a@x", Object: 1, Offset: 2, Bytes: 3, Saved: true, Redacted: true}, token)
}

// nvlist returns pairs in native encoding, as nvlist_pack writes them on a little-endian host.
func nvlist(pairs ...[]byte) []byte {
	b := []byte{0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}
	return append(append(b, bytes.Join(pairs, nil)...), 0, 0, 0, 0)
}

func pair(name string, typ uint32, value []byte) []byte {
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }
	body := append(pad(append([]byte(name), 0)), pad(value)...)
	b := binary.LittleEndian.AppendUint32(nil, uint32(nvPairHeader+len(body)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)+1))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, 1)
	b = binary.LittleEndian.AppendUint32(b, typ)
	return append(b, body...)
}

func number(name string, v uint64) []byte {
	return pair(name, nvUint64, binary.LittleEndian.AppendUint64(nil, v))
}

func makeToken(list []byte) string {
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, _ = w.Write(list)
	_ = w.Close()
	return fmt.Sprintf("1-%x-%x-%x", sumWords(z.Bytes(), binary.LittleEndian), len(list), z.Bytes())
}

func FuzzToken(f *testing.F) {
	for _, name := range []string{"token-full.txt", "token-incr.txt", "token-raw.txt", "token-lec.txt"} {
		f.Add(tokenFixture(f, name))
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			require.ErrorIs(t, err, &Error{Kind: BadToken})
			return
		}
		require.NoError(t, checkTokenSyntax(strings.ToLower(s)))
		require.LessOrEqual(t, len(token.ToName), maxPacked)
	})
}

// FuzzNVList parses the packed list directly, because fuzzing would rarely produce a valid checksum
// and compression.
func FuzzNVList(f *testing.F) {
	for _, name := range []string{"token-full.txt", "token-incr.txt", "token-raw.txt", "token-lec.txt"} {
		packed, err := hex.DecodeString(strings.Split(tokenFixture(f, name), "-")[3])
		require.NoError(f, err)
		z, err := zlib.NewReader(bytes.NewReader(packed))
		require.NoError(f, err)
		list, err := io.ReadAll(z)
		require.NoError(f, err)
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseNVList(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(list), len(b)/nvPairHeader)
		token, err := ParseToken(makeToken(b))
		if err == nil {
			require.Equal(t, list["toname"], token.ToName)
			require.Equal(t, list["toguid"], token.ToGUID)
		}
	})
}
