// Command pipes is one end of a transfer between two pipes, for scripts/bench:
//
//	pipes listen MODE STREAMS ADDRESS TICKET  writes a ticket to a file and the stream to standard output
//	pipes dial TICKET                         sends standard input
//	pipes listen-loop MODE ADDRESS TICKET     the same as a bare loop, see below
//	pipes dial-loop TICKET
//	pipes produce MIB [WORK PAUSE]            writes zeros in records, like zfs send
//	pipes consume [WORK PAUSE]                reads and prints the number of bytes
//
// listen and dial run only the engine, without ssh, survey and plan. The bare loops show what the
// mode itself costs: one goroutine at each end copies frames between pipe and connection, without
// buffer, digest, progress and checks of the end. produce and consume alternate between WORK (such
// as 3s) and PAUSE (such as 2s), as pools do while they sync.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pipes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 5 && args[0] == "listen":
		streams, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return listen(ctx, tcp.Offer{Mode: tcp.Mode(args[1]), Streams: streams, Address: args[3], Deadline: time.Minute}, args[4], receive)
	case len(args) == 4 && args[0] == "listen-loop":
		return listen(ctx, tcp.Offer{Mode: tcp.Mode(args[1]), Streams: 1, Address: args[2], Deadline: time.Minute}, args[3], receiveLoop)
	case len(args) == 2 && args[0] == "dial":
		return dial(ctx, args[1], send)
	case len(args) == 2 && args[0] == "dial-loop":
		return dial(ctx, args[1], sendLoop)
	case (len(args) == 2 || len(args) == 4) && args[0] == "produce":
		mib, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(writer{os.Stdout}, &pausing{Reader: io.LimitReader(zeros{}, mib<<20), words: args[2:]}, make([]byte, record))
		return err
	case (len(args) == 1 || len(args) == 3) && args[0] == "consume":
		n, err := io.CopyBuffer(writer{io.Discard}, &pausing{Reader: struct{ io.Reader }{os.Stdin}, words: args[1:]}, make([]byte, record))
		fmt.Fprintln(os.Stderr, n, "bytes")
		return err
	}
	return fmt.Errorf("unknown arguments %q", args)
}

// record is the usual size of zfs send's writes, in bytes.
const record = 128 << 10

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// writer hides ReaderFrom, so that io.CopyBuffer uses its buffer.
type writer struct{ io.Writer }

// pausing alternates between reading and pauses.
type pausing struct {
	io.Reader
	words       []string // durations of work and pause, not parsed yet
	work, pause time.Duration
	since       time.Time
}

func (p *pausing) Read(b []byte) (int, error) {
	if len(p.words) == 2 {
		var errs [2]error
		p.work, errs[0] = time.ParseDuration(p.words[0])
		p.pause, errs[1] = time.ParseDuration(p.words[1])
		if err := errors.Join(errs[:]...); err != nil {
			return 0, err
		}
		p.words, p.since = nil, time.Now()
	}
	if p.work > 0 && time.Since(p.since) > p.work {
		time.Sleep(p.pause)
		p.since = time.Now()
	}
	return p.Reader.Read(b)
}

// end moves the stream between a link and a pipe.
type end func(ctx context.Context, link *tcp.Link, pipe *os.File) error

func listen(ctx context.Context, o tcp.Offer, path string, receive end) error {
	l, err := tcp.Listen(ctx, tcp.Kernel{}, o, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	ticket, err := json.Marshal(l.Ticket())
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", ticket, 0o600); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	link, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	out, err := pipe(unix.Stdout)
	if err != nil {
		return err
	}
	return receive(ctx, link, out)
}

func receive(ctx context.Context, link *tcp.Link, out *os.File) error {
	_, err := transfer.Receive(ctx, link, output{out}, transfer.Options{}, nil)
	return err
}

func receiveLoop(_ context.Context, link *tcp.Link, out *os.File) error {
	defer link.Finish()
	b := tcp.NewBlock(transfer.DefaultBlock, 0)
	for {
		h, err := link.Conns()[0].ReadFrame(b)
		if err != nil || h.Kind == tcp.End {
			return err
		}
		if _, err := out.Write(b.Payload()); err != nil {
			return err
		}
	}
}

func dial(ctx context.Context, path string, send end) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var ticket tcp.Ticket
	if err := json.Unmarshal(text, &ticket); err != nil {
		return err
	}
	link, err := tcp.Dial(ctx, tcp.Kernel{}, ticket)
	if err != nil {
		return err
	}
	in, err := pipe(unix.Stdin)
	if err != nil {
		return err
	}
	return send(ctx, link, in)
}

func send(ctx context.Context, link *tcp.Link, in *os.File) error {
	_, err := transfer.Send(ctx, in, link, transfer.Options{}, nil)
	return err
}

func sendLoop(_ context.Context, link *tcp.Link, in *os.File) error {
	defer link.Finish()
	c := link.Conns()[0]
	b := tcp.NewBlock(transfer.DefaultBlock, 0)
	for frame := uint64(0); ; frame++ {
		n, err := io.ReadFull(in, b.Buffer())
		if err == io.EOF {
			return c.WriteEnd(tcp.Account{})
		}
		if err != nil && err != io.ErrUnexpectedEOF {
			return err
		}
		b.SetLen(n)
		if err := c.WriteFrame(tcp.Header{Kind: tcp.Data, Position: frame, Raw: uint32(n)}, b); err != nil {
			return err
		}
	}
}

// pipe returns a standard stream as a non-blocking pipe, resized to the pipes that zxfer
// creates for zfs.
func pipe(fd int) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 1<<20); err != nil {
		return nil, fmt.Errorf("standard stream %d is no pipe: %w", fd, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pipe"), nil
}

// output takes the same paths as zfs receive. Without one of these methods, the receiver copies.
type output struct{ *os.File }

var _ transfer.PipeSink = output{}

func (o output) Reads() bool                  { return true }
func (o output) Explain(err error) error      { return err }
func (o output) Pipe() *os.File               { return o.File }
func (o output) Bypassable() int64            { return math.MaxInt64 }
func (o output) Bypassed(int64)               {}
func (o output) Check([]byte) error           { return nil }
func (o output) Withhold() int                { return 312 } // size of a stream's END record
func (o output) Commit(context.Context) error { return o.Close() }
func (o output) Abort(error) error            { return o.Close() }
