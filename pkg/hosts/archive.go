package hosts

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
)

// Archive is the answer of OpCapture, a text archive. The protocol carries it as base64 of gzip,
// because an uncompressed one would fill half of TCP's first congestion window (10 segments, RFC 6928).
// A short run would then wait one more round trip for the other answers.
type Archive []byte

// maxArchive limits an archive in bytes.
const maxArchive = 32 << 20

// MarshalJSON compresses the archive.
func (a Archive) MarshalJSON() ([]byte, error) {
	if a == nil {
		return []byte("null"), nil
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(a); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return json.Marshal(packed.Bytes())
}

// UnmarshalJSON decompresses an archive of at most maxArchive bytes.
func (a *Archive) UnmarshalJSON(text []byte) error {
	var packed []byte
	if err := json.Unmarshal(text, &packed); err != nil || packed == nil {
		*a = nil
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(r, maxArchive+1))
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if len(out) > maxArchive {
		return fmt.Errorf("archive: more than %d bytes", maxArchive)
	}
	*a = out
	return nil
}
