// Command pipes is one end of a transfer between two pipes, for scripts/bench:
//
//	pipes listen MODE STREAMS TICKET  writes a ticket to a file, and what comes to standard output
//	pipes dial TICKET                 sends standard input
//
// It is the engine alone, as zfs send and zfs receive have it: without ssh, a
// survey or a plan.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pipes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 4 && args[0] == "listen":
		streams, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return listen(ctx, wire.Mode(args[1]), streams, args[3])
	case len(args) == 2 && args[0] == "dial":
		return dial(ctx, args[1])
	}
	return fmt.Errorf("unknown arguments %q", args)
}

func listen(ctx context.Context, mode wire.Mode, streams int, path string) error {
	l, err := wire.Listen(ctx, wire.Offer{Mode: mode, Streams: streams, Address: "127.0.0.1", Deadline: time.Minute}, nil)
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
	_, err = transfer.Receive(ctx, link, output{out}, transfer.Options{}, nil)
	return err
}

func dial(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var ticket wire.Ticket
	if err := json.Unmarshal(text, &ticket); err != nil {
		return err
	}
	link, err := wire.Dial(ctx, ticket)
	if err != nil {
		return err
	}
	in, err := pipe(unix.Stdin)
	if err != nil {
		return err
	}
	_, err = transfer.Send(ctx, input{in}, link, transfer.Options{}, nil)
	return err
}

// pipe is a standard stream, as large as the pipes that zxfer makes for zfs.
func pipe(fd int) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 1<<20); err != nil {
		return nil, fmt.Errorf("standard stream %d is no pipe: %w", fd, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pipe"), nil
}

type input struct{ *os.File }

func (i input) Pipe() *os.File { return i.File }
func (i input) Wait() error    { return nil }

type output struct{ *os.File }

func (o output) Pipe() *os.File               { return o.File }
func (o output) Passes() int64                { return math.MaxInt64 }
func (o output) Passed(int64)                 {}
func (o output) Withhold() int                { return 312 } // a stream's last record
func (o output) Commit(context.Context) error { return o.Close() }
func (o output) Abort(error) error            { return o.Close() }
