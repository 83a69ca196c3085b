package lzc

import (
	"context"
	_ "embed" // helper.py
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"zxfer/pkg/zfs/cli"
)

//go:embed helper.py
var script string

// startTimeout limits the start of the helper. Loading Python and the library takes a second on a
// slow machine.
const startTimeout = 30 * time.Second

// helper is a running Python process. It serves one request at a time.
type helper struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *os.File
	replies *json.Decoder // of out
	stderr  cli.Tail
	exited  chan struct{} // closed when the process is reaped
}

type versions struct {
	PyZFS  string `json:"pyzfs"`
	Python string `json:"python"`
}

// startHelper starts Python with the script on its command line, so it leaves no file behind.
// -I ignores the user's environment and directory.
func startHelper(ctx context.Context, cli *cli.CLI) (*helper, versions, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, versions{}, errors.New("python3 is not installed")
	}
	h := &helper{cmd: exec.Command(python, "-I", "-c", script), exited: make(chan struct{})}
	h.cmd.Env = append(os.Environ(), "LC_ALL=C", "PYTHONDONTWRITEBYTECODE=1")
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.cmd.Stderr = &h.stderr
	h.cmd.WaitDelay = time.Second
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, versions{}, err
	}
	// Wait closes the pipe of cmd.StdoutPipe while the reader may still use it, so this
	// creates its own.
	var out *os.File
	if h.out, out, err = os.Pipe(); err != nil {
		return nil, versions{}, err
	}
	h.cmd.Stdout, h.replies = out, json.NewDecoder(h.out)
	err = cli.StartChild(h.cmd)
	_ = out.Close() // otherwise the reader would not see the end of the child
	if err != nil {
		_ = h.out.Close()
		return nil, versions{}, fmt.Errorf("python3: %w", err)
	}
	go func() {
		_ = h.cmd.Wait() // crashed reports the reason from stderr
		close(h.exited)
	}()
	context.AfterFunc(ctx, h.kill)

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var greeting versions
	if err := h.reply(ctx, &greeting); err != nil {
		h.kill()
		return nil, versions{}, err
	}
	return h, greeting, nil
}

// message is one line from the helper.
type message struct {
	OK          json.RawMessage `json:"ok"`
	Unavailable string          `json:"unavailable"`
	Error       *failures       `json:"error"`
}

// call sends a request and decodes its reply into result, which may be nil. After any error
// other than *failures, the helper must not be used.
func (h *helper) call(ctx context.Context, request, result any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := h.in.Write(append(line, '\n')); err != nil {
		return h.crashed(err)
	}
	return h.reply(ctx, result)
}

func (h *helper) reply(ctx context.Context, result any) error {
	var m message
	got := make(chan error, 1)
	go func() { got <- h.replies.Decode(&m) }()
	var nonsense *json.SyntaxError
	select {
	case err := <-got:
		switch {
		case errors.As(err, &nonsense):
			return fmt.Errorf("python helper: not a reply: %w", err)
		case err != nil:
			return h.crashed(err)
		}
	case <-ctx.Done():
		// The request may still be carried out.
		h.kill()
		return context.Cause(ctx)
	}
	switch {
	case m.Unavailable != "":
		return errors.New(m.Unavailable)
	case m.Error != nil:
		return m.Error
	case result == nil:
		return nil
	}
	return json.Unmarshal(m.OK, result)
}

// crashed returns the error of a helper that ended unexpectedly.
func (h *helper) crashed(err error) error {
	h.kill()
	select {
	case <-h.exited:
	case <-time.After(time.Second):
	}
	text := strings.TrimSpace(h.stderr.String())
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:] // the last line of a traceback is the error
	}
	if text == "" {
		text = err.Error()
	}
	return fmt.Errorf("python helper ended unexpectedly: %s", text)
}

// hasExited reports whether the process ended.
func (h *helper) hasExited() bool {
	select {
	case <-h.exited:
		return true
	default:
		return false
	}
}

// kill kills the process group and closes its pipes. A process that cannot die yet sees the
// closed pipes.
func (h *helper) kill() {
	_ = h.in.Close()
	_ = h.out.Close()
	if !h.hasExited() {
		_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL) // it may have ended just now
	}
}
