package sshexec

import (
	"strings"
	"sync"
)

// Bounds of what is remembered of a remote shell's standard error.
const (
	keptLines = 5
	keptLine  = 1024 // bytes; longer lines are cut into several
)

// tail keeps the last lines of what a remote shell says, and logs them live.
type tail struct {
	log  func(string)
	keep int // lines

	mu   sync.Mutex
	line []byte
	kept []string
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b {
		if c != '\n' {
			t.line = append(t.line, c)
		}
		if c == '\n' || len(t.line) == keptLine {
			t.flush()
		}
	}
	return len(b), nil
}

func (t *tail) flush() {
	text := strings.TrimSpace(string(t.line))
	t.line = t.line[:0]
	if text == "" {
		return
	}
	if t.kept = append(t.kept, text); len(t.kept) > t.keep {
		t.kept = t.kept[1:]
	}
	t.log(text)
}

// String is the last lines, with what was begun of another.
func (t *tail) String() string {
	lines := t.lines()
	return strings.Join(lines[max(0, len(lines)-keptLines):], "; ")
}

// text is all that is kept, as it was written.
func (t *tail) text() string { return strings.Join(t.lines(), "\n") }

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	return t.kept
}
