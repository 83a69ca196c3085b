package replicate

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
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
	maxRecipients = 20
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

// jobVariable stands for the name of the job in a ping URL.
const jobVariable = "{job}"

// PingURL returns the URL for a job from the text of a ping key or file. Its errors do not contain the
// text, which is secret.
func (n *Notify) PingURL(text, job string) (*url.URL, error) {
	if n.Shared && !strings.Contains(text, jobVariable) {
		return nil, fault.Usagef(`write {job} into the URL, or ping into [job.notify] of each job`,
			"several jobs have the same URL, so that the success of one would hide the failure of another")
	}
	filled := strings.ReplaceAll(text, jobVariable, job)
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

// address matches a mail address, or the name of a local user. It cannot be an option.
var address = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9.!#$%&'*+/=?^_{|}~-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?$`)

// notify checks a table notify.
func (f *faults) notify(n *Notify, job string) {
	if n == nil {
		return
	}
	if n.Ping != "" && n.PingFile != "" {
		f.add("notify.ping", fault.Usagef("omit one of them", "notify.ping and notify.ping_file exclude each other"))
	}
	if n.Ping != "" {
		if _, err := (&Notify{Host: "host"}).PingURL(string(n.Ping), job); err != nil {
			f.addf("notify.ping", "notify.ping: %w", err)
		}
	}
	if file := strings.ReplaceAll(n.PingFile, jobVariable, job); strings.Contains(file, "://") { // a secret
		f.add("notify.ping_file", fault.Usagef("write the URL into a file, and the path of the file into ping_file", "notify.ping_file is a URL"))
	} else if file != "" && CheckPath(file) != nil {
		f.addf("notify.ping_file", "notify.ping_file: %q is not an absolute path", n.PingFile)
	}
	if len(n.Mail) > maxRecipients {
		f.addf("notify.mail", "notify.mail has %d recipients, more than %d", len(n.Mail), maxRecipients)
	}
	for _, to := range n.Mail {
		if len(to) > 254 || !address.MatchString(to) {
			f.addf("notify.mail", "notify.mail: %q is not a mail address; write name@example.org, or the name of a local user", to)
		}
	}
	f.oneOf("notify.mail_on", n.MailOn, "failure", "always")
	if len(n.Sendmail) > 0 && !path.IsAbs(n.Sendmail[0]) {
		f.addf("notify.sendmail", `notify.sendmail: %q is not an absolute path; write ["/usr/sbin/sendmail", "-t", "-i"]`, n.Sendmail[0])
	}
}

// notifyOf returns the complete table of a job of the file: the job's keys, and the file's for the others. It returns nil
// if runs report nothing.
func (f *File) notifyOf(j *Job) *Notify {
	n := f.Notify
	if own := j.Notify; own != nil {
		if own.Ping != "" || own.PingFile != "" {
			n.Ping, n.PingFile = own.Ping, own.PingFile
		}
		if own.Mail != nil {
			n.Mail = own.Mail
		}
		if own.MailOn != "" {
			n.MailOn = own.MailOn
		}
		if own.Sendmail != nil {
			n.Sendmail = own.Sendmail
		}
	}
	if !n.HasPing() && !n.HasMail() {
		return nil
	}
	n.Host, n.PingFile = f.Host, strings.ReplaceAll(n.PingFile, jobVariable, j.Name)
	return &n
}

// check returns what identifies the check that a job pings.
func (n *Notify) check() string { return string(n.Ping) + "\n" + n.PingFile }

// jobsByCheck returns the names of the jobs that ping a check, by Notify.check.
func (f *File) jobsByCheck() map[string][]string {
	out := map[string][]string{}
	for i := range f.Jobs {
		if n := f.notifyOf(&f.Jobs[i]); n.HasPing() {
			out[n.check()] = append(out[n.check()], f.Jobs[i].Name)
		}
	}
	return out
}

// sharedPings returns an error for each ping URL of several jobs.
func (f *File) sharedPings() (errs []error) {
	jobs := f.jobsByCheck()
	for i := range f.Jobs {
		n := f.notifyOf(&f.Jobs[i])
		if !n.HasPing() || n.Ping == "" || strings.Contains(string(n.Ping), jobVariable) {
			continue
		}
		if same := jobs[n.check()]; len(same) > 1 && same[0] == f.Jobs[i].Name {
			errs = append(errs, fault.Usagef(`write {job} into the URL, or ping into [job.notify] of each job`,
				"notify.ping: %s have the same URL, so that the success of one would hide the failure of another", jobList(same)))
		}
	}
	return errs
}

// jobList returns the names of some jobs for messages.
func jobList(names []string) string {
	names = slices.Clone(names)
	if more := len(names) - 3; more > 0 {
		names = append(names[:3], fmt.Sprintf("%d more", more))
	}
	return "jobs " + strings.Join(names, ", ")
}
