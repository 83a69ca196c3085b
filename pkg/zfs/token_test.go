package zfs

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func tokenFixture(t testing.TB, name string) string {
	return strings.TrimSpace(string(fixture(t, name)))
}

// The contents are those that zfs send -nvP -t printed of the same tokens.
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
	// Sent with -L, of a dataset that has no large block.
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
		{"cut", good[:len(good)-8], "checksum"},
		{"flipped", string(flipped), "checksum"},
		{"long", "1-" + strings.Repeat("0", maxToken), "at most"},
		{"no list", makeToken([]byte("hello, world!!!!")), "encoding"},
		{"empty list", makeToken(nvlist()), "toguid"},
		{"wrong type", makeToken(nvlist(pair("toguid", nvString, []byte("x\x00")))), "toguid"},
		{"no name", makeToken(nvlist(number("toguid", 1), number("object", 1), number("offset", 0), number("bytes", 0))), "toname"},
		{"twice", makeToken(nvlist(number("toguid", 1), number("toguid", 2))), "twice"},
		{"nested", makeToken(nvlist(pair("x", nvList, make([]byte, 24)))), "end mark"},
		{"unterminated", makeToken(nvlist(pair("toname", nvString, []byte("xxxxxxxx")))), "ended by zero"},
		{"array", makeToken(nvlist(pair("a", nvListArray, nil))), "array"},
	} {
		_, err := ParseToken(test.token)
		require.ErrorIs(t, err, &Error{Kind: BadToken}, test.name)
		require.ErrorContains(t, err, test.says, test.name)
	}
}

// Fields that are not known are passed over.
func TestParseTokenUnknownFields(t *testing.T) {
	t.Parallel()
	token, err := ParseToken(makeToken(nvlist(
		number("toguid", 7), number("object", 1), number("offset", 2), number("bytes", 3),
		pair("toname", nvString, []byte("tank/a@x\x00")),
		pair("savedok", 1, nil), pair("news", 1, nil), pair("int8", 3, []byte{1, 2, 3, 4}),
		pair("book_redact_snaps", 16, // of numbers
			make([]byte, 8)),
	)))
	require.NoError(t, err)
	require.Equal(t, Token{ToGUID: 7, ToName: "tank/a@x", Object: 1, Offset: 2, Bytes: 3, Saved: true, Redacted: true}, token)
}

// A number of pairs in native encoding, as nvlist_pack writes them on a
// little-endian host.
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

// The list behind the checksum and the compression, which fuzzing alone
// would hardly get through.
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
