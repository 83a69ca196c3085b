package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

func newReplicateInit(a *app) *cobra.Command {
	o := &replicateOptions{}
	cmd := &cobra.Command{
		Use:   "init [FLAGS]",
		Short: "Create a job file from four answers",
		Long: `Ask four questions, and write a job file with comments on further keys. An
empty answer selects the default in brackets. init never overwrites a file.`,
		Example: `  zxfer replicate init
  zxfer replicate init --config ./replicate.toml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := os.Lstat(o.file); !errors.Is(err, os.ErrNotExist) {
				return fault.Refusef("edit it, or name another file: --config FILE", "%s exists", o.file)
			}
			text, err := interview(interruptibleReader{cmd.Context(), a.stdin}, a.stderr)
			if err != nil {
				return err
			}
			if _, err := replicate.Parse(o.file, []byte(text)); err != nil {
				return err
			}
			if err := writeNew(o.file, text); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "wrote %[1]s\nnext: zxfer replicate check%[2]s, then zxfer replicate install%[2]s\n", o.file, configFlag(o.file))
			return err
		},
	}
	o.define(cmd, false, false)
	return cmd
}

// writeNew creates a file atomically. It fails if the file exists.
func writeNew(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return statedir.Create(name, []byte(text), 0o644)
}

// interview asks the questions and returns a job file.
func interview(in io.Reader, out io.Writer) (string, error) {
	var a answers
	keep := func(answer *string) func(string) error {
		return func(s string) error { *answer = s; return a.check() }
	}
	lines := bufio.NewScanner(in)
	for _, q := range []struct {
		question, otherwise string
		take                func(string) error
	}{
		{"Dataset to replicate ([user@]host:pool/dataset)", "", keep(&a.source)},
		{"Include the datasets below it? (yes/no)", "yes", func(s string) error {
			if a.recursive = s == "yes"; !a.recursive && s != "no" {
				return errors.New("write yes or no")
			}
			return nil
		}},
		{"Target ([user@]host:pool or [user@]host:pool/dataset; empty for snapshots alone)", "", keep(&a.target)},
		{"How often (hourly, daily, *:0/15 or another calendar event of systemd)", "hourly", keep(&a.schedule)},
	} {
		if err := ask(lines, out, q.question, q.otherwise, q.take); err != nil {
			return "", err
		}
	}
	return a.text(), nil
}

// ask repeats a question until take accepts the answer.
func ask(lines *bufio.Scanner, out io.Writer, question, otherwise string, take func(string) error) error {
	shown := question
	if otherwise != "" {
		shown += " [" + otherwise + "]"
	}
	for {
		fmt.Fprintf(out, "%s: ", shown)
		if !lines.Scan() {
			fmt.Fprintln(out)
			return cmp.Or(lines.Err(), fault.Usagef("", "no answer to %q", question))
		}
		err := take(cmp.Or(strings.TrimSpace(lines.Text()), otherwise))
		if err == nil {
			return nil
		}
		fmt.Fprintf(out, "  %v\n", err)
	}
}

// answers holds the answers so far.
type answers struct {
	source, target, schedule string
	recursive                bool
}

// check returns the error that a job with these answers would have, while the user can still
// correct them.
func (a *answers) check() error {
	text := fmt.Sprintf("[[job]]\nname = %q\nsource = %q\nrecursive = %t\nschedule = %q\nsnapshots = { take = %q }\n",
		a.job(), a.source, a.recursive, a.schedule, replicate.DefaultTemplate)
	if a.target != "" {
		text += fmt.Sprintf("target = [{ name = \"backup\", to = %q }]\n", a.target)
	}
	_, err := replicate.Parse("", []byte(text))
	if err == nil {
		return nil
	}
	why, _, _ := strings.Cut(err.Error(), "\n")
	if _, after, ok := strings.Cut(why, fmt.Sprintf("job %q: ", a.job())); ok {
		why = after // the file has no lines yet
	}
	return errors.New(why)
}

// job returns a name for the job: the last component of the source.
func (a *answers) job() string {
	if a.source == "" {
		return "job"
	}
	return replicate.SanitizeName(a.source[strings.LastIndexAny(a.source, "/:")+1:])
}

// text returns the job file.
func (a *answers) text() string {
	if a.target == "" {
		return fmt.Sprintf(jobFile, a.job(), a.source, a.recursive, a.schedule, "#", replicate.DefaultTemplate)
	}
	return fmt.Sprintf(jobFile, a.job(), a.source, a.recursive, a.schedule, "", replicate.DefaultTemplate) + fmt.Sprintf(jobTarget, a.target)
}

// jobFile is the template of init: %q job, source, %t recursive, %q schedule, %s "#" for lines
// that need a target, %q snapshot template.
const jobFile = `# Jobs of zxfer replicate. After a change: zxfer replicate check.
# Lines that begin with "#" show what else there is, or what holds without them.

# Figures for Prometheus, for node_exporter's textfile collector:
#[metrics]
#textfile = "/var/lib/prometheus/node-exporter/zxfer.prom"

[[job]]
name = %q
source = %q
recursive = %t
# Datasets to leave out: a pattern without "/" matches a name at any depth, one
# with "/" the path below the source, and behind "re:" is a regular expression.
#exclude = ["cache", "vm/scratch*", "re:^home/(alice|bob)/tmp"]
# Only those with a property, set or inherited (zfs set zxfer:job=home DATASET):
#property = "zxfer:job=home"

# When to run, as OnCalendar= of systemd.timer(5), and a random delay.
schedule = %q
jitter = "1m"
# How long after it was due a dataset is not yet late, to status.
#grace = "15m"
# Who runs it, with the rights of zfs allow alone; check prints which it needs.
#user = "backup"

# Datasets that move at once, over all targets.
%sparallel = 2

[job.snapshots]
# Names of the job's own snapshots, in UTC. Only these, and what is adopted,
# are sent and ever removed.
take = %q
# Take none of a dataset that holds nothing new:
skip_unchanged = false
# Snapshots of others to send, and to remove when retention does not keep them:
#adopt = ["autosnap_*"]

# What to keep on the source: the newest 10, whatever their time, and the newest of
# each of so many hours, days ... Leave the table out to keep everything.
[job.retention]
last = 10
hourly = 36
daily = 14
# Whose hours and days, else those of UTC; also a name such as "Europe/Berlin".
#timezone = "local"

# A database, or a virtual machine, that stands still while its snapshots are taken:
# also "mysql", "guest-agent" and "command".
#[[job.freeze]]
#kind = "postgresql"
#run_as = "postgres"

# Runs before the job, which does not run where this fails.
#[[job.before]]
#command = ["/usr/local/bin/prepare"]
#timeout = "1m"

# Runs after a run that failed; the record is on its standard input.
#[job.alert]
#command = ["/usr/local/bin/tell-me"]
`

// jobTarget follows jobFile if there is a target: %q target.
const jobTarget = `
#[job.transfer]
# Bytes per second, over all connections of a stream; less while people work.
#bandwidth = "100MiB"
#bandwidth_window = [{ from = "08:00", to = "18:00", bandwidth = "10MiB" }]
# How the other host is reached.
#rsh = "ssh -i /etc/zxfer/key"

# Where to; another [[job.target]] is one more copy.
[[job.target]]
name = "backup"
to = %q
# Leave out there, and send there, of what the job has:
#exclude = ["scratch"]
#snapshots = { only = ["*_daily"], newest = 5, since = "14d" }
# How a dataset begins that is not there: also "newest", with that alone, or "fail",
# which asks you before a copy that is gone is begun anew.
#first = "all"
# Keep a copy that diverged under another name, and begin it anew; else it is refused.
#on_divergence = "rotate"
# Instead of retention there: have no more than the source has.
#mirror = { limit = 100, gone = "90d" }

# Prove that the copies can be restored: clone, read and compare them.
#[job.drill]
#schedule = "weekly"
#sample = "5%%"
# Runs in the clone of each filesystem, on the copy's host.
#command = ["/usr/local/bin/check-it"]
# The key there of what is encrypted; it is loaded while the drill reads.
#key_file = "/etc/zxfer/copy.key"

# What to keep there.
[job.target.retention]
last = 10
hourly = 24
daily = 30
weekly = 8
monthly = 12
`
