package tcp

import (
	"bufio"
	"net"
	"sync"
)

// frameBufferSize is the buffer in bytes for reads and writes of TLS records. Reads start with
// initialReadSize: most streams of many small ones end before it is full, and a sender receives
// little.
const (
	frameBufferSize = 256 << 10
	initialReadSize = 16 << 10
)

// frameBuffer sits between crypto/tls and its connection. crypto/tls reads and writes each
// record of 16 KiB separately. frameBuffer combines many of them in one system call.
type frameBuffer struct {
	*net.TCPConn
	in        *bufio.Reader
	outgrown  bool // a read has filled the initial buffer
	readWait  *WaitTimer
	writeWait *WaitTimer

	mu   sync.Mutex // crypto/tls writes alerts while it reads records
	held bool
	out  []byte
}

func newFrameBuffer(c *net.TCPConn) *frameBuffer {
	k := &frameBuffer{TCPConn: c, readWait: new(WaitTimer), writeWait: new(WaitTimer)}
	k.in = bufio.NewReaderSize(meteredReader{k}, initialReadSize)
	return k
}

// meteredReader reads from the connection and counts the wait.
type meteredReader struct{ k *frameBuffer }

func (r meteredReader) Read(p []byte) (int, error) {
	r.k.readWait.Start()
	defer r.k.readWait.Stop()
	n, err := r.k.TCPConn.Read(p)
	r.k.outgrown = r.k.outgrown || n >= initialReadSize
	return n, err
}

func (k *frameBuffer) Read(p []byte) (int, error) {
	if k.outgrown && k.in.Size() < frameBufferSize && k.in.Buffered() == 0 {
		k.in = bufio.NewReaderSize(meteredReader{k}, frameBufferSize)
	}
	return k.in.Read(p)
}

// hold buffers writes, up to frameBufferSize, until flush.
func (k *frameBuffer) hold() {
	k.mu.Lock()
	k.held = true
	k.mu.Unlock()
}

func (k *frameBuffer) flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = false
	return k.push()
}

func (k *frameBuffer) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.out)+len(p) > frameBufferSize {
		if err := k.push(); err != nil {
			return 0, err
		}
	}
	k.out = append(k.out, p...)
	if !k.held {
		return len(p), k.push()
	}
	return len(p), nil
}

func (k *frameBuffer) push() error {
	if len(k.out) == 0 {
		return nil
	}
	k.writeWait.Start()
	_, err := k.TCPConn.Write(k.out)
	k.writeWait.Stop()
	k.out = k.out[:0]
	return err
}
