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

// startTime bounds the start of the helper: loading Python and the library takes a
// second on a slow machine.
const startTime = 30 * time.Second

// helper is one running Python process. It serves one request at a time.
type helper struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *os.File
	replies *json.Decoder // of out
	stderr  cli.Tail
	gone    chan struct{} // closed when the process is reaped
}

type hello struct {
	PyZFS  string `json:"pyzfs"`
	Python string `json:"python"`
}

// startHelper starts Python with the script on its command line: no file is
// left behind, and -I keeps the user's environment and directory out of it.
func startHelper(ctx context.Context, cli *cli.CLI) (*helper, hello, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, hello{}, errors.New("python3 is not installed")
	}
	h := &helper{cmd: exec.Command(python, "-I", "-c", script), gone: make(chan struct{})}
	h.cmd.Env = append(os.Environ(), "LC_ALL=C", "PYTHONDONTWRITEBYTECODE=1")
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.cmd.Stderr = &h.stderr
	h.cmd.WaitDelay = time.Second
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, hello{}, err
	}
	// A pipe of our own: that of cmd.StdoutPipe is closed by Wait, which runs beside
	// the reader.
	var out *os.File
	if h.out, out, err = os.Pipe(); err != nil {
		return nil, hello{}, err
	}
	h.cmd.Stdout, h.replies = out, json.NewDecoder(h.out)
	err = cli.StartChild(h.cmd)
	_ = out.Close() // the child has its own; with ours open its end would go unnoticed
	if err != nil {
		_ = h.out.Close()
		return nil, hello{}, fmt.Errorf("python3: %w", err)
	}
	go func() {
		_ = h.cmd.Wait() // how it ended shows in what it said
		close(h.gone)
	}()
	context.AfterFunc(ctx, h.kill)

	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var greeting hello
	if err := h.reply(ctx, &greeting); err != nil {
		h.kill()
		return nil, hello{}, err
	}
	return h, greeting, nil
}

// message is one line from the helper.
type message struct {
	OK          json.RawMessage `json:"ok"`
	Unavailable string          `json:"unavailable"`
	Error       *failures       `json:"error"`
}

// call sends a request and decodes its reply into result, which may be nil.
// After any error but *failures the helper is of no more use.
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
		// What it was doing may still be done; nobody can tell.
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

// crashed words the end of a helper that should have gone on.
func (h *helper) crashed(err error) error {
	h.kill()
	select {
	case <-h.gone:
	case <-time.After(time.Second):
	}
	text := strings.TrimSpace(h.stderr.String())
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:] // of a traceback the last line says what
	}
	if text == "" {
		text = err.Error()
	}
	return fmt.Errorf("python helper ended unexpectedly: %s", text)
}

// dead tells that the process is gone.
func (h *helper) dead() bool {
	select {
	case <-h.gone:
		return true
	default:
		return false
	}
}

// kill ends the process and its group and closes its pipes, which also tells
// one that cannot die yet.
func (h *helper) kill() {
	_ = h.in.Close()
	_ = h.out.Close()
	if !h.dead() {
		_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL) // it may be just gone
	}
}
