package notify

import (
	"bytes"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"strings"
	"time"

	"zxfer/pkg/printable"
)

// Mail is a message. Subject and Body may come from another host: the encoding keeps them from
// becoming headers.
type Mail struct {
	To            []string // checked addresses
	Subject, Body string
	Date          time.Time
}

// Limits of a message in bytes.
const (
	maxSubject  = 150
	maxMailBody = 20_000
)

// Bytes returns the message for sendmail -t, which adds the sender. It consists of printable ASCII
// characters in lines of less than 300 bytes. No line is a single dot.
func (m *Mail) Bytes() []byte {
	subject := printable.Line(strings.ToValidUTF8(m.Subject, "?"))
	subject = strings.ReplaceAll(subject, "=?", "= ?") // it would be decoded (RFC 2047)
	if len(subject) > maxSubject {
		subject = strings.ToValidUTF8(subject[:maxSubject-3], "") + "..."
	}
	body := printable.Text(strings.ToValidUTF8(m.Body, "?"))
	if len(body) > maxMailBody {
		body = strings.ToValidUTF8(body[:maxMailBody], "") + "\n...\n"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "To: %s\n", strings.Join(m.To, ",\n "))
	fmt.Fprintf(&b, "Subject: %s\n", strings.ReplaceAll(mime.QEncoding.Encode("utf-8", subject), "?= =?", "?=\n =?"))
	fmt.Fprintf(&b, "Date: %s\n", m.Date.Format(time.RFC1123Z))
	b.WriteString("Auto-Submitted: auto-generated\nMIME-Version: 1.0\n" + // RFC 3834: no vacation answers it
		"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n")
	var encoded bytes.Buffer
	w := quotedprintable.NewWriter(&encoded)
	_, _ = w.Write([]byte(body)) // writes to a Buffer cannot fail
	_ = w.Close()
	for line := range strings.Lines(strings.ReplaceAll(encoded.String(), "\r\n", "\n")) {
		if strings.HasPrefix(line, ".") {
			line = "=2E" + line[1:]
		}
		b.WriteString(line)
	}
	if !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
		b.WriteByte('\n')
	}
	return b.Bytes()
}
