package sshexec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"zxfer/pkg/fault"
)

// maxChunk is what a relay passes on at once, in bytes.
const maxChunk = 128 << 10

// maxRelays bounds the remote shells of one ListenRelay: a link has at most as
// many connections, and other users of the host reach the listener, too.
const maxRelays = 64

// ServeRelay is the far end of a relay: it joins a loopback address to its
// input and output, until both directions have ended or ctx does. Other
// addresses are refused: a relay is not a way into the host's network.
//
// What comes from the address is sent in chunks, four bytes of length,
// big-endian, before each. An empty one says that the peer has closed for
// writing but still reads: ssh does not pass on the end of a program's output
// before the program's own.
func ServeRelay(ctx context.Context, address string, in io.Reader, out io.Writer) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !ap.Addr().IsLoopback() {
		return fault.Refusef("", "relay to %q: only loopback addresses are allowed", address)
	}
	var d net.Dialer
	dialled, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("relay to %s: %w", address, err)
	}
	c := dialled.(*net.TCPConn)
	defer c.Close()
	if _, err := io.WriteString(out, "\n"+relayWord+"\n"); err != nil {
		return err
	}
	ended := make(chan error, 1) // the input
	go func() {
		_, err := io.Copy(c, in)
		if err == nil {
			err = c.CloseWrite()
		}
		ended <- err
	}()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := sendChunks(out, c); err != nil {
		return fmt.Errorf("relay from %s: %w", address, err)
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("relay to %s: %w", address, err)
	}
	return nil
}

// sendChunks passes on what r has, and then that there is no more.
func sendChunks(w io.Writer, r io.Reader) error {
	buf := make([]byte, 4+maxChunk)
	for {
		n, err := r.Read(buf[4:])
		if n > 0 || errors.Is(err, io.EOF) {
			binary.BigEndian.PutUint32(buf, uint32(n))
			if _, err := w.Write(buf[:4+n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			continue // the next Read says so again
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// receiveChunks is the other end of sendChunks. It returns nil for an orderly
// end only.
func receiveChunks(w io.Writer, r io.Reader) error {
	buf := make([]byte, maxChunk)
	for {
		if _, err := io.ReadFull(r, buf[:4]); err != nil {
			return fmt.Errorf("the relay ended: %w", err)
		}
		n := binary.BigEndian.Uint32(buf)
		switch {
		case n == 0:
			return nil
		case n > maxChunk:
			return fmt.Errorf("the relay sent a chunk of %d bytes, at most %d are allowed", n, maxChunk)
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return fmt.Errorf("the relay ended: %w", err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// ListenRelay opens a listener on this host's loopback that relays every
// connection to a loopback address of the other host, "127.0.0.1:PORT",
// through a remote shell of its own, at most 64 at once. The host must have
// zxfer: an agent runs there. The listener closes when ctx ends, and its connections too.
// refused is told that the host relays none (fault.Refused), and never will.
func ListenRelay(ctx context.Context, o Options, address string, refused func(error)) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		defer l.Close() // where it takes none any more, a dialer is not to wait
		slots := make(chan struct{}, maxRelays)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case slots <- struct{}{}:
			default:
				_ = c.Close() // a dialer tries again
				continue
			}
			go func() {
				defer func() { <-slots }()
				relay(ctx, o, c.(*net.TCPConn), address, refused)
			}()
		}
	}()
	return l.Addr().String(), nil
}

// relay joins a connection to an address of the other host, each direction
// until its own end.
func relay(ctx context.Context, o Options, c *net.TCPConn, address string, refused func(error)) {
	defer c.Close()
	far, err := connect(ctx, o, "--relay="+address)
	if err != nil {
		if fault.ClassOf(err) == fault.Refused {
			refused(err)
		} else {
			o.log(fmt.Sprintf("relay: %v", err))
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close(); far.interrupt() })
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(far.process, c) // a failure shows to the other direction
		_ = far.CloseWrite()
	})
	if err := receiveChunks(c, far); err == nil {
		_ = c.CloseWrite() // c may still have something to say
	} else {
		_ = c.Close() // to its peer, this is a cut
	}
	up.Wait()
	_ = far.Close() // what it says was logged
}
