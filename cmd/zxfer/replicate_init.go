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
	"zxfer/pkg/replicate/jobfile"
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
			if _, err := jobfile.Parse(o.file, []byte(text)); err != nil {
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
	cmd.Flags().Lookup("config").Usage = newConfigHelp
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
			if err := lines.Err(); err != nil {
				return err
			}
			return fault.Usagef("", "no answer to %q", question)
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
	_, err := jobfile.Parse("", []byte(text))
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
	return jobfile.SanitizeName(a.source[strings.LastIndexAny(a.source, "/:")+1:])
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
const jobFile = `# Jobs of zxfer replicate. After a change, run: zxfer replicate check
# Lines that start with "#" are optional keys with example or default values.

# Metrics file for the textfile collector of node_exporter (default: none).
#[metrics]
#textfile = "/var/lib/prometheus/node-exporter/zxfer.prom"

[[job]]
name = %q
source = %q
# Also replicate the descendants of the source (default false).
recursive = %t
# Datasets to exclude. A pattern without "/" matches a name at any depth. One with
# "/" matches the path below the source. "re:" starts a regular expression.
#exclude = ["cache", "vm/scratch*", "re:^home/(alice|bob)/tmp"]
# Select only datasets with this user property, set or inherited.
#property = "zxfer:job=home"

# Times of the runs, as OnCalendar= of systemd.timer(5), and their maximum random
# delay (default "0s").
schedule = %q
jitter = "1m"
# status calls a dataset late after this extra time.
#grace = "15m"
# Account that runs the job (default "root"). It needs zfs allow permissions.
# zxfer replicate check, run as this account, prints the commands.
#user = "backup"

# Datasets sent in parallel, over all targets.
%sparallel = 2

[job.snapshots]
# Names of the job's snapshots, in UTC. The job sends and destroys only these and
# adopted snapshots.
take = %q
# Take no snapshot of an unchanged dataset.
skip_unchanged = false
# Snapshots of other tools. The job sends them and applies its retention to them.
#adopt = ["autosnap_*"]

# Snapshots to keep on the source: the most recent 10, and the most recent one of
# each of the last 36 hours and 14 days. Without this table, zxfer keeps all.
[job.retention]
last = 10
hourly = 36
daily = 14
# Time zone in which hours and days start (default "UTC"): "local", or a name such
# as "Europe/Berlin".
#timezone = "local"

# Application to freeze while snapshots are taken: "postgresql", "mysql",
# "guest-agent" (virtual machine) or "command".
#[[job.freeze]]
#kind = "postgresql"
#run_as = "postgres"

# Runs before the job. If it fails, the job does not run.
#[[job.before]]
#command = ["/usr/local/bin/prepare"]
#timeout = "1m"

# Runs after a failed, refused or interrupted run, and after a drill that did not
# find all copies good. Its standard input is the record, as JSON.
#[job.alert]
#command = ["/usr/local/bin/notify"]
`

// jobTarget follows jobFile if there is a target: %q target.
const jobTarget = `
#[job.transfer]
# Total limit for each target in bytes per second (default: none), and another
# limit at these times of the day.
#bandwidth = "100MiB"
#bandwidth_window = [{ from = "08:00", to = "18:00", bandwidth = "10MiB" }]
# Remote shell (default "ssh", or ZXFER_RSH of the environment).
#rsh = "ssh -i /etc/zxfer/key"

# Each further [[job.target]] is another copy. A target on disks that come and go
# needs a table "disk" (docs/howto/disks.md).
[[job.target]]
name = "backup"
to = %q
# This target gets only this part of the job.
#exclude = ["scratch"]
#snapshots = { only = ["*_daily"], newest = 5, since = "14d" }
# What to send if the target lacks the dataset: "all" or "newest" snapshots; "fail"
# refuses.
#first = "all"
# Rename a diverged copy and send in full (default "refuse").
#on_divergence = "rotate"
# Rename the copy of a renamed dataset (default "refuse").
#on_rename = "follow"
# Instead of retention: destroy snapshots that were deleted on the source, at most
# limit per dataset and run, and the copy of a deleted dataset after this time.
#mirror = { limit = 100, gone = "90d" }

# Restore tests: clone copies, read them, and compare them with the source. sample
# is the part of the files to read (default "100%%").
#[job.drill]
#schedule = "weekly"
#sample = "5%%"
# Runs in the clone of each filesystem, on the copy's host.
#command = ["/usr/local/bin/check-it"]
# Key file on the copy's host, loaded only during the drill.
#key_file = "/etc/zxfer/copy.key"

# Snapshots to keep on this target. Without this table, zxfer keeps all.
[job.target.retention]
last = 10
hourly = 24
daily = 30
weekly = 8
monthly = 12
`
