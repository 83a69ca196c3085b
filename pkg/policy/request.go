package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"zxfer/pkg/zfs"
)

// The arguments of operations as this package knows them. They are written
// out, not taken over from where they are carried out: a field that is added
// there is refused here until a rule says what it may be.
type (
	listQuery struct {
		Dataset   string   `json:"dataset"`
		Recursive bool     `json:"recursive,omitempty"`
		Versions  bool     `json:"versions,omitempty"`
		Newest    bool     `json:"newest,omitempty"`
		Alone     bool     `json:"alone,omitempty"`
		Only      []string `json:"only,omitempty"`
		Changed   bool     `json:"changed,omitempty"`
	}
	propertyQuery struct {
		Names      []string `json:"names"`
		Properties []string `json:"properties"`
	}
	hold struct {
		Tag       string   `json:"tag"`
		Snapshots []string `json:"snapshots"`
	}
	streamFlags struct {
		Raw         bool `json:"raw,omitempty"`
		LargeBlocks bool `json:"large_blocks,omitempty"`
		Embedded    bool `json:"embedded,omitempty"`
		Compressed  bool `json:"compressed,omitempty"`
	}
	sendSpec struct {
		Dataset string      `json:"dataset"`
		From    string      `json:"from,omitempty"`
		Through []string    `json:"through,omitempty"`
		To      string      `json:"to"`
		Flags   streamFlags `json:"flags"`
		Token   string      `json:"token,omitempty"`
	}
	contentQuery struct {
		sendSpec
		Within within `json:"within"`
	}
	within struct {
		Object uint64 `json:"object,omitempty"`
		From   uint64 `json:"from,omitempty"`
		To     uint64 `json:"to,omitempty"`
	}
	arrival struct {
		Snapshots []zfs.SnapshotID `json:"snapshots"`
		Base      uint64           `json:"base,omitempty,string"`
		Volume    bool             `json:"volume,omitempty"`
		Raw       bool             `json:"raw,omitempty"`
		Resumed   bool             `json:"resumed,omitempty"`
	}
	receiveSpec struct {
		Target   string            `json:"target"`
		Whole    bool              `json:"whole,omitempty"`
		Rollback bool              `json:"rollback,omitempty"`
		Origin   string            `json:"origin,omitempty"`
		Set      map[string]string `json:"set,omitempty"`
		KeepKey  bool              `json:"keep_key,omitempty"`
		Arrival  arrival           `json:"arrival,omitzero"` // which zfs.Gate judges
	}
	offer struct {
		Mode      string        `json:"mode"`
		Streams   int           `json:"streams"`
		Address   string        `json:"address"`
		Advertise string        `json:"advertise,omitempty"`
		PortLow   int           `json:"port_low,omitempty"`
		PortHigh  int           `json:"port_high,omitempty"`
		Peer      string        `json:"peer,omitempty"`
		Deadline  time.Duration `json:"deadline"`
		Window    int           `json:"window,omitempty"`
	}
	ticket struct {
		Mode       string        `json:"mode"`
		Address    string        `json:"address"`
		Session    string        `json:"session"`
		Secret     []byte        `json:"secret"`
		Streams    int           `json:"streams"`
		Window     int           `json:"window,omitempty"`
		Deadline   time.Duration `json:"deadline"`
		ServerPin  []byte        `json:"server_pin,omitempty"`
		ClientCert []byte        `json:"client_cert,omitempty"`
		ClientKey  []byte        `json:"client_key,omitempty"`
	}
	options struct {
		Buffer          int64         `json:"buffer,omitempty"`
		Block           int           `json:"block,omitempty"`
		BandLimit       int64         `json:"bwlimit,omitempty"`
		Compress        string        `json:"compress,omitempty"`
		CompressThreads int           `json:"compress_threads,omitempty"`
		Stall           time.Duration `json:"stall,omitempty"`
	}
	task struct {
		Send    *sendSpec    `json:"send,omitempty"`
		Receive *receiveSpec `json:"receive,omitempty"`
		Ticket  *ticket      `json:"ticket,omitempty"`
		Offered string       `json:"offered,omitempty"`
		Options options      `json:"options"`
	}
)

// decode reads one JSON value with no field that is not known.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}
