package jobfile

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// address matches a mail address, or the name of a local user. It cannot be an option.
var address = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9.!#$%&'*+/=?^_{|}~-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?$`)

// notify checks a table notify.
func (f *faults) notify(n *replicate.Notify, job string) {
	if n == nil {
		return
	}
	if n.Ping != "" && n.PingFile != "" {
		f.add("notify.ping", fault.Usagef("omit one of them", "notify.ping and notify.ping_file exclude each other"))
	}
	if n.Ping != "" {
		if _, err := (&replicate.Notify{Host: "host"}).PingURL(string(n.Ping), job); err != nil {
			f.addf("notify.ping", "notify.ping: %w", err)
		}
	}
	if file := strings.ReplaceAll(n.PingFile, replicate.JobVariable, job); strings.Contains(file, "://") { // a secret
		f.add("notify.ping_file", fault.Usagef("write the URL into a file, and the path of the file into ping_file", "notify.ping_file is a URL"))
	} else if file != "" && CheckPath(file) != nil {
		f.addf("notify.ping_file", "notify.ping_file: %q is not an absolute path", n.PingFile)
	}
	if len(n.Mail) > replicate.MaxRecipients {
		f.addf("notify.mail", "notify.mail has %d recipients, more than %d", len(n.Mail), replicate.MaxRecipients)
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
func notifyOf(f *replicate.File, j *replicate.Job) *replicate.Notify {
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
	n.Host, n.PingFile = f.Host, strings.ReplaceAll(n.PingFile, replicate.JobVariable, j.Name)
	return &n
}

// check returns what identifies the check that a job pings.
func check(n *replicate.Notify) string { return string(n.Ping) + "\n" + n.PingFile }

// jobsByCheck returns the names of the jobs that ping a check, by Notify.check.
func jobsByCheck(f *replicate.File) map[string][]string {
	out := map[string][]string{}
	for i := range f.Jobs {
		if n := notifyOf(f, &f.Jobs[i]); n.HasPing() {
			out[check(n)] = append(out[check(n)], f.Jobs[i].Name)
		}
	}
	return out
}

// sharedPings returns an error for each ping URL of several jobs.
func sharedPings(f *replicate.File) (errs []error) {
	jobs := jobsByCheck(f)
	for i := range f.Jobs {
		n := notifyOf(f, &f.Jobs[i])
		if !n.HasPing() || n.Ping == "" || strings.Contains(string(n.Ping), replicate.JobVariable) {
			continue
		}
		if same := jobs[check(n)]; len(same) > 1 && same[0] == f.Jobs[i].Name {
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
