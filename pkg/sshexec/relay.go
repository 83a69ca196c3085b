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

// maxChunk is the maximum number of bytes in a chunk.
const maxChunk = 128 << 10

// maxRelays limits the remote shells of one ListenRelay, because other users of the host can also
// connect to the listener. A link never has more connections.
const maxRelays = 64

// ServeRelay runs on the remote end of a relay. It connects to a loopback address and copies
// between that connection and in and out, until both directions or ctx end. It refuses other
// addresses, so that a relay gives no access to the host's network.
//
// Data from the address is sent in chunks, each preceded by its length as four bytes, big-endian.
// ssh does not forward the end of a program's output before the program ends. So an empty chunk
// marks the end of a direction.
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
	ended := make(chan error, 1) // result of copying the input
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

// sendChunks copies r to w in chunks and ends with an empty chunk.
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
			continue // the next Read returns EOF again
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// receiveChunks copies chunks from r to w. It returns nil only after an empty chunk.
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
			return fmt.Errorf("the relay sent a chunk of %d bytes, more than %d", n, maxChunk)
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return fmt.Errorf("the relay ended: %w", err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// ListenRelay opens a listener on the local loopback interface and returns its address. It relays
// each connection to a loopback address of the other host ("127.0.0.1:PORT") through a separate
// remote shell, at most 64 concurrently. The host needs zxfer, because an agent runs there. The listener
// and its connections close when ctx ends. If the host does not support relays, refused is called
// with a fault.Refused error.
func ListenRelay(ctx context.Context, o Options, address string, refused func(error)) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		defer l.Close() // so that clients do not wait after a failure
		slots := make(chan struct{}, maxRelays)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case slots <- struct{}{}:
			default:
				_ = c.Close() // the client retries
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

// relay copies between a connection and an address of the other host. Each direction ends
// separately.
func relay(ctx context.Context, o Options, c *net.TCPConn, address string, refused func(error)) {
	defer c.Close()
	remote, err := connect(ctx, o, "--relay="+address)
	if err != nil {
		if fault.ClassOf(err) == fault.Refused {
			refused(err)
		} else {
			o.log(fmt.Sprintf("relay: %v", err))
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close(); remote.interrupt() })
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(remote.process, c) // the other direction reports the failure
		_ = remote.CloseWrite()
	})
	if err := receiveChunks(c, remote); err == nil {
		_ = c.CloseWrite() // c may still send
	} else {
		_ = c.Close() // signals an interrupted connection to the peer
	}
	up.Wait()
	_ = remote.Close() // its messages were logged
}
