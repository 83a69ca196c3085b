package lzc

import (
	"cmp"
	"context"
	_ "embed" // helper.py
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
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

// failures lists the errors of a request that libzfs_core refused.
type failures struct {
	Failures []failure `json:"failures"`
	More     int       `json:"more"` // number of errors that libzfs_core did not list
}

type failure struct {
	Class   string `json:"class"` // of the exception
	Errno   int    `json:"errno"`
	Message string `json:"message"`
	Name    string `json:"name"` // "" for the whole request
}

func (f *failures) Error() string {
	var all []string
	for _, x := range f.Failures {
		all = append(all, strings.TrimSpace(x.Name+" "+x.Message))
	}
	return strings.Join(all, "; ")
}

// without splits f: it returns the names whose failures have the kind fine, and the rest, nil
// if empty.
func (f *failures) without(op string, fine zfs.Kind) (names []string, rest *failures) {
	rest = &failures{More: f.More}
	for _, x := range f.Failures {
		if x.kind(op) == fine && x.Name != "" {
			names = append(names, x.Name)
		} else {
			rest.Failures = append(rest.Failures, x)
		}
	}
	if len(rest.Failures) == 0 && rest.More == 0 {
		rest = nil
	}
	return names, rest
}

// drop removes the failures of kind fine, and reports whether any failure is left.
func (f *failures) drop(op string, fine zfs.Kind) bool {
	f.Failures = slices.DeleteFunc(f.Failures, func(x failure) bool { return x.kind(op) == fine })
	return len(f.Failures) > 0 || f.More > 0
}

// zfsErrors converts a *failures in err to *zfs.Error. It uses names, those of the request, for
// failures without a name.
func zfsErrors(op string, names []string, err error) error {
	var f *failures
	if !errors.As(err, &f) {
		return err
	}
	var errs []error
	for _, x := range f.Failures {
		k := x.kind(op)
		hint := zfs.Failure{Op: op, Subject: x.Name, User: cli.UserName()}
		if x.Name == "" && len(names) > 0 {
			hint.Subject = names[0]
		}
		errs = append(errs, &zfs.Error{Kind: k, Op: op, Subject: cmp.Or(x.Name, finding.JoinFirst(names, 3)), Detail: x.detail(k), Hint: hint.Hint(k)})
	}
	if f.More > 0 {
		errs = append(errs, fmt.Errorf("and %d more", f.More))
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// kind returns the kind of an error number, which depends on the operation.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/contrib/pyzfs/libzfs_core/_error_translation.py
func (f failure) kind(op string) zfs.Kind {
	e := syscall.Errno(f.Errno)
	switch {
	case op == zfs.OpDestroy && e == syscall.EEXIST:
		return zfs.Busy // the snapshot has clones
	case op == zfs.OpEstimate && (e == syscall.EXDEV || e == syscall.ENODEV):
		return zfs.NoBase
	case op == zfs.OpEstimate && e == syscall.EINVAL && f.Class == "NameInvalid":
		// For a bookmark that does not exist as incremental source, pyzfs reports an illegal
		// snapshot name. Names are valid at this point.
		return zfs.NotFound
	}
	return cmp.Or(map[syscall.Errno]zfs.Kind{
		syscall.EPERM: zfs.Permission, syscall.EACCES: zfs.Permission,
		syscall.ENOENT: zfs.NotFound, syscall.ESRCH: zfs.NotFound,
		syscall.EXDEV: zfs.NotFound, syscall.ENODEV: zfs.NotFound, // PoolNotFound
		syscall.EEXIST: zfs.Exists,
		syscall.EBUSY:  zfs.Busy,
		syscall.ENOSPC: zfs.NoSpace, syscall.EDQUOT: zfs.NoSpace,
		syscall.EROFS: zfs.PoolFault, syscall.EIO: zfs.PoolFault, syscall.EAGAIN: zfs.PoolFault,
		syscall.ENAMETOOLONG: zfs.InvalidName, syscall.E2BIG: zfs.InvalidName,
		syscall.ENOTSUP: zfs.Feature,
	}[e], zfs.Unknown)
}

func (f failure) detail(k zfs.Kind) string {
	if k == zfs.NotFound && f.Class == "NameInvalid" {
		return "incremental source does not exist"
	}
	return strings.ToLower(f.Message)
}
