package replicate

import (
	"net/netip"
	"net/url"
	"strings"

	"zxfer/pkg/fault"
)

// Notify configures messages about the runs of a job. A table of a job replaces single keys of the
// file's.
type Notify struct {
	// Ping is the URL of a check of a dead man's switch that follows the pinging API of
	// healthchecks. PingFile names a file that contains it. "{job}" is the name of the job, and "{host}"
	// the name of the host.
	Ping     Secret `toml:"ping,omitempty"`
	PingFile string `toml:"ping_file,omitempty"`
	// Mail lists the recipients of mail; nil = the recipients of the file, empty = none.
	Mail []string `toml:"mail,omitempty"`
	// MailOn is "failure" (the first failed run, one each day, and the next success) or "always"; ""
	// = failure.
	MailOn string `toml:"mail_on,omitempty"`
	// Sendmail is the command that sends a mail from its standard input; nil = the host's sendmail.
	Sendmail []string `toml:"sendmail,omitempty"`

	// Shared means that other jobs of the file have the same Ping or PingFile. Host is the host of
	// the file's part, "" = unknown.
	Shared bool   `toml:"-"`
	Host   string `toml:"-"`
}

// Secret is a text that nothing prints.
type Secret string

const hidden = "(secret)"

func (Secret) String() string { return hidden }

// GoString hides the text from %#v.
func (Secret) GoString() string { return hidden }

// MarshalJSON hides the text.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// Limits of a notification.
const (
	maxPingURL    = 2000 // bytes
	MaxRecipients = 20
)

// WhetherAlways reports whether every run sends a mail.
func (n *Notify) WhetherAlways() bool { return n.MailOn == "always" }

// HasPing reports whether runs send pings.
func (n *Notify) HasPing() bool { return n != nil && (n.Ping != "" || n.PingFile != "") }

// HasMail reports whether runs send mail.
func (n *Notify) HasMail() bool { return n != nil && len(n.Mail) > 0 }

// SendmailCommand returns the command that sends mail.
func (n *Notify) SendmailCommand() []string {
	if len(n.Sendmail) > 0 {
		return n.Sendmail
	}
	return []string{"/usr/sbin/sendmail", "-t", "-i"}
}

// JobVariable stands for the name of the job in a ping URL.
const JobVariable = "{job}"

// PingURL returns the URL for a job from the text of a ping key or file. Its errors do not contain the
// text, which is secret.
func (n *Notify) PingURL(text, job string) (*url.URL, error) {
	if n.Shared && !strings.Contains(text, JobVariable) {
		return nil, fault.Usagef(`write {job} into the URL, or ping into [job.notify] of each job`,
			"several jobs have the same URL, so that the success of one would hide the failure of another")
	}
	filled := strings.ReplaceAll(text, JobVariable, job)
	if n.Host != "" {
		filled = strings.ReplaceAll(filled, "{host}", n.Host)
	}
	u, err := url.Parse(filled)
	const hint = "write the ping URL of a check, such as https://hc-ping.com/UUID"
	switch {
	case len(text) > maxPingURL:
		return nil, fault.Usagef(hint, "the URL has more than %d bytes", maxPingURL)
	case err != nil || u.Host == "" || strings.ContainsFunc(filled, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`{}\"<>^|`, r) }):
		return nil, fault.Usagef(hint, "not a URL")
	case u.User != nil || u.Fragment != "":
		return nil, fault.Usagef(hint, "the URL has a user or a fragment")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, fault.Usagef("use https", "http would send the secret URL readable over the network; it is valid only for localhost")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fault.Usagef(hint, "the URL does not start with https://")
	}
	return u, nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}
