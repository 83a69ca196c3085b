package zfs

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Token holds the contents of a resume token: the interrupted stream and the position in it.
// Its checksum has no key, so anyone can forge it. ParseToken checks that the name is valid
// and that numbers are within the limits of ZFS. The caller must check that the snapshots
// exist and belong together.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_dataset.c (get_receive_resume_token_impl)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_send_resume_token_to_nvlist)
type Token struct {
	ToGUID   uint64 `json:"to_guid,string"`
	ToName   string `json:"to_name"`                    // full name of the snapshot on the source at the start of the stream
	FromGUID uint64 `json:"from_guid,string,omitempty"` // 0 for a full stream
	Object   uint64 `json:"object"`                     // position to resume at
	Offset   uint64 `json:"offset"`
	Bytes    uint64 `json:"bytes"` // stream bytes that were stored
	// Flags are the features that the stream used. LargeBlocks is unset if -L was given but no
	// block was large.
	Flags    StreamFlags `json:"flags"`
	Saved    bool        `json:"saved,omitempty"`    // of a stream of zfs send --saved
	Redacted bool        `json:"redacted,omitempty"` // of a redacted stream
}

const (
	tokenVersion = 1
	// maxPacked is the largest size of a token's contents, and maxToken that of its text. A
	// token has less than 1 KiB, except that a redacted stream adds 8 bytes per redaction
	// snapshot. Each dataset of an untrusted listing can have a token, so the limit also
	// bounds the time to parse a listing.
	maxPacked = 16 << 10
	maxToken  = 4 * maxPacked

	// maxOffset is the largest offset in files and streams. Sums of a few offsets fit into 64
	// bits.
	maxOffset = 1 << 62
)

// ParseToken decodes and checks a resume token. Errors are an *Error of kind
// BadToken. ParseToken ignores fields that it does not know.
func ParseToken(s string) (Token, error) {
	t, err := parseToken(s)
	if err != nil {
		return Token{}, badToken(err)
	}
	return t, nil
}

func badToken(err error) error {
	return &Error{Kind: BadToken, Op: "token", Detail: "resume token: " + err.Error()}
}

// checkTokenSyntax checks the characters of a token, so that a command line cannot take it for
// anything else.
func checkTokenSyntax(s string) error {
	for i, r := range s {
		if hexDigit := r >= '0' && r <= '9' || r >= 'a' && r <= 'f'; !hexDigit && (r != '-' || i == 0) {
			return badToken(fmt.Errorf("got the character %q at byte %d, expected hex digits and dashes", r, i))
		}
	}
	return nil
}

func parseToken(s string) (Token, error) {
	if len(s) > maxToken {
		return Token{}, fmt.Errorf("got %d bytes, expected at most %d", len(s), maxToken)
	}
	f := strings.Split(s, "-")
	if len(f) != 4 {
		return Token{}, fmt.Errorf("got %d parts, expected version-checksum-size-data", len(f))
	}
	if v, err := strconv.ParseUint(f[0], 10, 32); err != nil || v != tokenVersion {
		return Token{}, fmt.Errorf("got version %q, expected %d", f[0], tokenVersion)
	}
	sum, err := strconv.ParseUint(f[1], 16, 64)
	if err != nil {
		return Token{}, fmt.Errorf("got checksum %q, expected a hex number", f[1])
	}
	size, err := strconv.ParseUint(f[2], 16, 64)
	if err != nil || size > maxPacked {
		return Token{}, fmt.Errorf("got size %q, expected a hex number of at most %d bytes", f[2], maxPacked)
	}
	packed, err := hex.DecodeString(f[3])
	if err != nil {
		return Token{}, errors.New("its data is not hex-encoded")
	}
	// Words are summed in the byte order of the host that made the token.
	if sumWords(packed, binary.LittleEndian) != sum && sumWords(packed, binary.BigEndian) != sum {
		return Token{}, errors.New("its checksum is wrong")
	}
	data, err := inflate(packed, int(size))
	if err != nil {
		return Token{}, err
	}
	return tokenFromList(data)
}

// sumWords returns the checksum of a token: the first word of fletcher-4, the sum of all whole
// 32-bit words.
func sumWords(b []byte, order binary.ByteOrder) (sum uint64) {
	for ; len(b) >= 4; b = b[4:] {
		sum += uint64(order.Uint32(b))
	}
	return sum
}

func inflate(packed []byte, size int) ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("its data is not compressed: %w", err)
	}
	defer z.Close()
	data, err := io.ReadAll(io.LimitReader(z, int64(size)+1))
	if err != nil {
		return nil, fmt.Errorf("its data does not decompress: %w", err)
	}
	if len(data) != size {
		return nil, fmt.Errorf("its data has %d bytes or more, expected %d", len(data), size)
	}
	return data, nil
}

func tokenFromList(data []byte) (Token, error) {
	list, err := parseNVList(data)
	if err != nil {
		return Token{}, err
	}
	var t Token
	for _, n := range []struct {
		name     string
		to       *uint64
		required bool
	}{
		{"toguid", &t.ToGUID, true}, {"fromguid", &t.FromGUID, false}, {"object", &t.Object, true},
		{"offset", &t.Offset, true}, {"bytes", &t.Bytes, true},
	} {
		v, ok := list[n.name].(uint64)
		if !ok && (n.required || list[n.name] != nil) {
			return Token{}, fmt.Errorf("it has no number %q", n.name)
		}
		*n.to = v
	}
	var ok bool
	if t.ToName, ok = list["toname"].(string); !ok {
		return Token{}, errors.New(`it has no string "toname"`)
	}
	switch dataset, _, err := ParseSnapshot(t.ToName); {
	case err != nil || dataset == "":
		return Token{}, fmt.Errorf("it does not name a snapshot: %w", err)
	case t.ToGUID == 0:
		return Token{}, errors.New("its snapshot has no GUID")
	case t.Object >= maxObject:
		return Token{}, fmt.Errorf("it continues at object %d, but there are only %d", t.Object, uint64(maxObject))
	case t.Offset > maxOffset || t.Bytes > maxOffset:
		return Token{}, fmt.Errorf("it continues at offset %d after %d bytes, more than %d", t.Offset, t.Bytes, uint64(maxOffset))
	}
	has := func(name string) bool { return list[name] != nil }
	t.Flags = StreamFlags{
		Raw: has("rawok"), LargeBlocks: has("largeblockok"), Embedded: has("embedok"), Compressed: has("compressok"),
	}
	t.Saved = has("savedok")
	t.Redacted = has("redact_snaps") || has("book_redact_snaps")
	return t, nil
}
