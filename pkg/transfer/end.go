package transfer

import (
	"encoding/json"
	"fmt"

	"zxfer/pkg/wire"
)

// ending is the payload of an End frame: what the sender says it sent. Each
// connection ends with one; what concerns the whole stream is in all of them.
type ending struct {
	Bytes      int64  `json:"bytes"`      // of the stream
	Frames     uint64 `json:"frames"`     // of the stream
	Connection uint64 `json:"connection"` // frames on this connection
	Digest     string `json:"digest,omitempty"`
}

func writeEnding(c *wire.Conn, e ending) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f := wire.NewFrame(len(text))
	f.Kind = wire.End
	f.SetText(string(text))
	return c.WriteFrame(f)
}

func parseEnding(f *wire.Frame) (e ending, err error) {
	if err := json.Unmarshal(f.Payload(), &e); err != nil {
		return e, fmt.Errorf("%w: %w", ErrMiscounted, err)
	}
	return e, nil
}

// writeControl sends a control frame with a text.
func writeControl(c *wire.Conn, kind wire.Kind, text string) error {
	f := wire.NewFrame(len(text))
	f.Kind = kind
	f.SetText(text)
	return c.WriteFrame(f)
}
