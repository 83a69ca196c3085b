// Package agent lets a Site be on another host: Serve offers a Site's
// operations on an agent's standard input and output, and Remote is a Site
// that calls them. Messages are length-prefixed JSON; calls run side by side.
//
// It starts no process: how the other host is reached is package rsh's.
package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
)

// Times of the keepalive. A client pings; an agent or a client that heard
// nothing for silence takes the other for dead.
const (
	pingEvery = 5 * time.Second
	silence   = 30 * time.Second
	// endWithin bounds how long an agent waits for its operations to wind
	// down: a receive that was cut off saves its state in that time.
	endWithin = 60 * time.Second
)

// Server serves one Site.
type Server struct {
	Site    site.Site
	Version string
	// Silence is how long the agent waits for a sign of life; 0 = 30 seconds.
	Silence time.Duration

	out   io.Writer
	outMu sync.Mutex

	mu      sync.Mutex
	running map[uint64]context.CancelFunc
	calls   sync.WaitGroup
}

// Serve answers calls until the input ends, the other end falls silent, or
// ctx ends; then everything that was started has ended too. A clean end of
// input returns nil.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s.out, s.running = out, map[uint64]context.CancelFunc{}
	if s.Silence <= 0 {
		s.Silence = silence
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if _, err := io.WriteString(out, hello(s.Version)); err != nil {
		return err
	}
	heard := time.AfterFunc(s.Silence, func() {
		end(fmt.Errorf("heard nothing for %s: the other end is gone", s.Silence))
	})
	defer heard.Stop()
	go func() { end(s.read(ctx, bufio.NewReaderSize(in, 64<<10), heard)) }()
	<-ctx.Done()
	s.windDown()
	if err := context.Cause(ctx); !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// windDown waits until all calls have ended, and closes the Site.
func (s *Server) windDown() {
	ended := make(chan struct{})
	go func() { s.calls.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endWithin):
	}
	_ = s.Site.Close() // nobody is left to be told
}

func (s *Server) read(ctx context.Context, in io.Reader, heard *time.Timer) error {
	ops := operations()
	for {
		m, err := readMessage(in)
		if err != nil {
			return err
		}
		heard.Reset(s.Silence)
		switch m.Kind {
		case ping:
			s.write(&message{Kind: pong})
		case cancel:
			s.mu.Lock()
			if stop := s.running[m.ID]; stop != nil {
				stop()
			}
			s.mu.Unlock()
		case call:
			s.start(ctx, m, ops[m.Op])
		default:
			return fmt.Errorf("unexpected message %q", m.Kind)
		}
	}
}

// start runs a call on a goroutine of its own.
func (s *Server) start(ctx context.Context, m *message, run operation) {
	ctx, stop := context.WithCancel(ctx)
	s.mu.Lock()
	_, twice := s.running[m.ID]
	s.running[m.ID] = stop
	s.mu.Unlock()
	s.calls.Add(1)
	go func() {
		defer s.calls.Done()
		defer stop()
		answer := &message{Kind: result, ID: m.ID}
		var value any
		err := fmt.Errorf("unknown operation %q", m.Op)
		switch {
		case twice:
			err = fmt.Errorf("call %d is running already", m.ID)
		case run != nil:
			value, err = run(ctx, s.Site, m.Body, func(p transfer.Progress) { s.progress(m.ID, p) })
		}
		if err == nil {
			answer.Body, err = json.Marshal(value)
		}
		if err != nil {
			answer.Body, answer.Error = nil, pack(err)
		}
		s.mu.Lock()
		delete(s.running, m.ID)
		s.mu.Unlock()
		s.write(answer)
	}()
}

func (s *Server) progress(id uint64, p transfer.Progress) {
	body, err := json.Marshal(p)
	if err != nil {
		return // a Progress is plain numbers
	}
	s.write(&message{Kind: progress, ID: id, Body: body})
}

// Log sends a line to the client, for the user. Before Serve it does nothing.
func (s *Server) Log(text string) {
	if s.out != nil {
		s.write(&message{Kind: logged, Text: text})
	}
}

// write sends a message. A client that is gone shows as the end of input.
func (s *Server) write(m *message) {
	raw, err := encode(m)
	if err != nil {
		raw, err = encode(&message{Kind: result, ID: m.ID, Error: pack(err)})
		if err != nil {
			return
		}
	}
	s.outMu.Lock()
	defer s.outMu.Unlock()
	_, _ = s.out.Write(raw)
}
