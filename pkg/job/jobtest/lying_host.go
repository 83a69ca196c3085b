package jobtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/agent"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/mux"
)

// LyingHost is a host behind a remote shell whose agent's replies are altered.
type LyingHost struct {
	World *World
	Alter func(n int, body any) any // alters the n-th reply
}

func (h *LyingHost) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	client, here := net.Pipe()
	there, server := net.Pipe()
	go func() {
		_ = (&agent.Server{Host: h.World, Version: "1"}).Serve(context.WithoutCancel(ctx), server, server)
		_ = server.Close()
	}()
	go func() {
		_ = h.pass(bufio.NewReader(there), there, here)
		_, _ = here.Close(), there.Close()
	}()
	return agent.NewRemote(ctx, l.Host, client, func(string) {})
}

// pass passes on the hello, the requests, and then altered messages.
func (h *LyingHost) pass(in *bufio.Reader, there, here net.Conn) error {
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
			m.Body = h.Alter(n, m.Body)
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
