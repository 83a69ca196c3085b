package notify

import (
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// read parses a message as another program does.
func read(t *testing.T, m *Mail) (header mail.Header, subject, body string) {
	t.Helper()
	raw := string(m.Bytes())
	for line := range strings.Lines(raw) {
		require.Less(t, len(line), 300)
		require.NotEqual(t, ".\n", line, "it would end the message")
		require.Regexp(t, `^[ -~\t]*\n$`, line)
	}
	got, err := mail.ReadMessage(strings.NewReader(raw))
	require.NoError(t, err, raw)
	subject, err = new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
	require.NoError(t, err)
	text, err := io.ReadAll(quotedprintable.NewReader(got.Body))
	require.NoError(t, err)
	return got.Header, subject, string(text)
}

func TestMail(t *testing.T) {
	t.Parallel()
	m := &Mail{To: []string{"admin@example.org", "root"}, Subject: "zxfer: home on größe: failed", Body: "error: \n.\nFrom grün\n", Date: time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)}
	header, subject, body := read(t, m)
	require.Equal(t, m.Subject, subject)
	require.Equal(t, m.Body, strings.ReplaceAll(body, "\r\n", "\n"))
	require.Equal(t, "admin@example.org, root", header.Get("To"))
	at, err := header.Date()
	require.NoError(t, err)
	require.True(t, m.Date.Equal(at))
	require.Equal(t, "auto-generated", header.Get("Auto-Submitted"))
}

// FuzzMail expects that no text of another host adds a header, or makes the message invalid.
func FuzzMail(f *testing.F) {
	for _, odd := range []string{"x\r\nBcc: evil@example.org", "\n\nbody", "\x00\x1b[2J", "\xff", "=?utf-8?q?=0d=0aBcc:?=", strings.Repeat("ü", 500), ".", ".\n.\r\n.", "a\rb", "\u2028", strings.Repeat(" ", 200)} {
		f.Add(odd, odd)
	}
	f.Fuzz(func(t *testing.T, subject, body string) {
		m := &Mail{To: []string{"root"}, Subject: subject, Body: body, Date: time.Unix(0, 0)}
		header, got, text := read(t, m)
		require.Len(t, header, 7, "%v", header)
		require.LessOrEqual(t, len(got), maxSubject)
		require.NotContains(t, got, "\n")
		require.LessOrEqual(t, len(text), maxMailBody+2000)
	})
}
