package jobfile

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/transport"
)

// keyDoc documents keys of a job file that share default and meaning.
type keyDoc struct {
	keys string // separated by blanks
	// def is the default as written in the file; "" = the key is required, "-" = no default.
	def string
	// example is a TOML value.
	example string
	meaning string
}

// keyDocs documents all keys by table. Tables that are keys themselves need no row.
func keyDocs() map[string][]keyDoc {
	docs := map[string][]keyDoc{
		"job": {
			{"name", "", `"home"`, "unique name: letters, digits, `-`, `_`, at most 48"},
			{"source", "", `"tank/home"`, "`[[user@]host:]dataset`"},
			{"recursive", "false", "true", "includes the descendants"},
			{"include", "-", `["alice"]`, "[patterns](#patterns) of datasets to include; all if missing; requires `recursive`"},
			{"exclude", "-", `["cache"]`, "patterns of datasets to exclude"},
			{"property", "-", `"zxfer:job=home"`, "selects datasets by a [user property](#selection)"},
			{"mount_below", "-", `["/var/lib/db"]`, "more directories below which `promote` and `switch` use a [recorded mountpoint](../howto/failover.md#mountpoints)"},
			{"schedule", "-", `"hourly"`, "`OnCalendar=` of systemd.timer(5); without it, runs are manual"},
			{"jitter", `"0s"`, `"5m"`, "maximum random delay of a run (not with cron)"},
			{"grace", `"15m"`, `"1h"`, "time after which an overdue dataset is late, in addition to `jitter`"},
			{"user", `"root"`, `"backup"`, "account that runs the unit; needs `zfs allow`, which `check` prints"},
			{"prune_limit", "100", "500", "maximum number of unexpected removals per dataset and run"},
			{"parallel", "2", "4", "concurrent datasets over all targets, 1 to 64; streams of at most 96 KiB: for each target"},
			{"retries", "5", "10", "retries of an interrupted transfer"},
			{"first", `"all"`, `"newest"`, "history for a dataset that is new on the target: `all`, `newest` (one snapshot), `fail` (refuse)"},
			{"holds", `"both"`, `"source"`, "sides that hold the common snapshot: `both`, `source`, `target`, `none`"},
			{"bookmarks", `"sent"`, `"none"`, "`sent` bookmarks sent snapshots on the source"},
			{"template", "-", `["base"]`, "template name, or list of names; later ones take precedence"},
			{"hosts", "-", `["web", "db1"]`, "hosts or groups that run the job; all if missing"},
		},
		"job.snapshots": {
			{"take", "-", `"zxfer_{job}_%Y-%m-%d_%H:%M:%S"`, "name template, in UTC: text, `{job}`, `%Y %m %d %H %M`, optionally `%S`; without it, the job takes no snapshots"},
			{"skip_unchanged", "false", "true", "takes no snapshot of a dataset that did not change"},
			{"adopt", "-", `["autosnap_*"]`, "patterns of other tools' snapshots to send and prune"},
			{"received_from", "-", `"home:b"`, "`JOB:TARGET` that sends the source here, for a [relay](../howto/relay.md): sends only what that job has confirmed"},
			{"late", "two runs", `"26h"`, "with `received_from`: time without a new snapshot after which the copies are late"},
			{"newest", "0", "5", "sends only the most recent N snapshots; 0 sends all"},
			{"since", `"0s"`, `"14d"`, "sends only snapshots of at most this age, and the most recent one"},
			{"latest_only", "false", "true", "the same as `newest = 1`"},
		},
		"job.retention": {
			{"last", "0", "10", "keeps the most recent N snapshots"},
			{"hourly daily weekly monthly yearly", "0", "24", "keeps the most recent snapshot of each of the last N periods that have one"},
			{"timezone", `"UTC"`, `"Europe/Berlin"`, "zone in which periods start; `local` is the zone of the host that runs the job"},
		},
		"job.retention.also": {
			{"names", "", `["autosnap_*_monthly"]`, "patterns of snapshots"},
			{"last", "0", "6", "keeps the most recent N of them"},
			{"age", `"0s"`, `"186d"`, "keeps those at most this much older than the most recent snapshot"},
			{"before", "-", "2026-11-23T00:00:00Z", "restricts the rule to older snapshots"},
		},
		"job.target": {
			{"name", "", `"backup1"`, "unique in the job; not `source`"},
			{"to", "", `"root@backup1:vault/home"`, "`[[user@]host:]dataset`; a pool, or a name that ends in `/`, receives the source's path below it"},
			{"include exclude", "-", `["cache"]`, "narrow the job's selection"},
			{"property", "-", `"zxfer:offsite"`, "narrows the job's selection"},
			{"first", "-", `"fail"`, "replaces the job's"},
			{"on_divergence", `"refuse"`, `"rotate"`, "`rotate` renames a diverged copy and sends in full"},
			{"on_rename", `"refuse"`, `"follow"`, "`follow` renames a copy [like its source](../howto/diverged.md#renamed-sources)"},
			{"sent_on_by", "-", `["offsite"]`, "jobs on the target's host that [send the copy on](../howto/relay.md): retention, mirror and `holds --gc` keep what they need"},
		},
		"job.target.snapshots": {
			{"only", "-", `["*_daily"]`, "patterns of snapshots to send"},
		},
		"job.target.properties": {
			{"carry", "false", `["org.example:note"]`, "`true` carries [harmless properties](../security.md#properties-of-another-host); a list also carries the named ones"},
			{"set", "-", `{ compression = "zstd" }`, "properties to set on the target"},
			{"exclude", "-", `["recordsize"]`, "properties not to carry"},
		},
		"job.target.disk": {
			{"pools", "", `{ blue = "1234567890123456789" }`, "label and GUID (`zpool get guid`) of each pool; all have the name in `to`"},
			{"import", "false", "true", "imports an attached pool, without mounting its datasets"},
			{"export", "false", "true", "exports a pool that zxfer imported, at the end of the run"},
			{"scrub", "-", `"30d"`, "scrubs the pool if its last scrub is older, at least a day"},
			{"late", "-", `"14d"`, "age at which a copy on the disk is late; replaces the job's `grace`"},
			{"hold", `"90d"`, `"30d"`, "time for which the source holds the common snapshot of an absent disk; then it keeps a bookmark. `keep` means forever"},
			{"directories", "/dev/disk/by-id", `["/dev/disk/by-path"]`, "directories with devices"},
		},
		"job.target.mirror": {
			{"limit", "100", "20", "maximum number of snapshots per dataset, and of datasets, that one run destroys"},
			{"gone", `"keep"`, `"90d"`, "destroys the copy of a deleted dataset after this time, at least a day"},
		},
		"job.transfer.bandwidth_window": {
			{"from to", "", `"08:00"`, "start and end, in the host's time zone"},
			{"bandwidth", "", `"10MiB"`, "limit in bytes per second, from the next stream on; 0 [stops transfers](../howto/pause.md#hours-without-transfers)"},
		},
		"job.drill": {
			{"schedule", "-", `"weekly"`, "as `schedule` of the job; not in targets"},
			{"sample", `"100%"`, `"5%"`, "part of the files to read"},
			{"command", "-", `["/usr/local/bin/check"]`, "runs in the clone, on the copy's host; exit code 0 means good"},
			{"timeout", `"1h"`, `"10m"`, "limit for `command`"},
			{"writable", "false", "true", "lets `command` write to the clone"},
			{"deadline", "-", `"12h"`, "limit for the whole drill, by default a day after the next one is due; not in targets"},
			{"key_file", "-", `"/etc/zxfer/home.key"`, "key file on the copy's host, to load during the drill"},
		},
		"job.freeze": {
			{"kind", "", `"postgresql"`, "`postgresql`, `mysql`, `guest-agent`, `command`"},
			{"name", "the kind", `"web1"`, "name in records"},
			{"datasets", "-", `["pg"]`, "patterns of the application's datasets; all if missing"},
			{"timeout", `"30s"`, `"10s"`, "maximum time from freeze to thaw, up to 10m"},
			{"on_failure", `"stop"`, `"continue"`, "`continue` takes snapshots even if the freeze fails"},
			{"host", "-", `"db.example.org"`, "database host; for PostgreSQL also the socket's directory"},
			{"port", "-", "5433", "database port"},
			{"user", "-", `"zxfer"`, "database account"},
			{"socket", "-", `"/run/mysqld/mysqld.sock"`, "socket of `mysql` or `guest-agent`"},
			{"database", `"postgres"`, `"app"`, "database for the connection (`postgresql`)"},
			{"credentials", "-", `"/etc/zxfer/my.cnf"`, "password file (`postgresql`) or option file (`mysql`)"},
			{"run_as", "-", `"postgres"`, "account for the client or the commands"},
			{"freeze thaw", "-", `["/usr/local/sbin/mail-stop"]`, "commands of `command`"},
		},
		"host": {
			{"name", "", `"web"`, "name of the group"},
			{"names", "the name", `["web[1-20]", "db-*"]`, "short host names, ranges and patterns"},
			{"address", `"{host}"`, `"root@{host}.example.org"`, "address for `status --hosts`"},
			{"rsh", `"ssh"`, `"ssh -p 2222"`, "remote shell for `status --hosts`"},
			{"vars", "-", `{ vault = "backup1" }`, "values for `{name}` in jobs"},
		},
		"notify": {
			{"ping", "-", `"https://hc-ping.com/UUID"`, "secret URL of a check; `{job}` and `{host}` are names"},
			{"ping_file", "-", `"/etc/zxfer/ping"`, "file with the URL in its first line; its path may have `{job}`"},
			{"mail", "-", `["admin@example.org"]`, "recipients of mail"},
			{"mail_on", `"failure"`, `"always"`, "`failure` (first failure, one each day, next success) or `always`"},
			{"sendmail", "`/usr/sbin/sendmail -t -i`", `["/usr/bin/msmtp", "-t"]`, "command that reads a mail"},
		},
		"metrics": {
			{"textfile", "-", `"/var/lib/node/zxfer.prom"`, "`.prom` file that runs write for node_exporter"},
		},
	}
	docs["job.transfer"] = transferDocs()
	docs["job.before"] = hookDocs(keyDoc{"on_failure", `"stop"`, `"continue"`, "in `before`: `stop` ends the run"})
	docs["job.after"] = hookDocs()
	docs["job.alert"] = hookDocs()
	return docs
}

func hookDocs(more ...keyDoc) []keyDoc {
	return append([]keyDoc{
		{"command", "", `["/usr/local/bin/notify", "home"]`, "argument list with an absolute path; no shell"},
		{"timeout", `"1m"`, `"10m"`, "limit for the command"},
	}, more...)
}

// transferDocs documents the options of the transport, with the texts of their flags.
func transferDocs() []keyDoc {
	examples := map[string]string{
		"wire": `"tls"`, "trusted_link": "true", "streams": "4", "dial": `"source"`, "data_address": `"10.0.5.2"`, "ports": `"9000-9009"`,
		"window": `"4MiB"`, "congestion": `"cubic"`, "buffer": `"64MiB"`, "bandwidth": `"100MiB"`, "compress": `"zstd:3"`, "compress_threads": "2",
		"rsh": `"ssh -p 2222"`, "no_bootstrap": "true",
	}
	inHelp := regexp.MustCompile(` \(default ([^()]+)\)`)
	var docs []keyDoc
	for _, o := range transport.Options(transport.JobFile) {
		d := keyDoc{keys: o.Key, def: "-", example: examples[o.Key], meaning: replicate.Keys(o.Help())}
		switch m := inHelp.FindStringSubmatch(d.meaning); {
		case m != nil:
			d.def, d.meaning = m[1], inHelp.ReplaceAllString(d.meaning, "")
		case len(o.Words) > 0:
			d.def = `"` + o.Words[0].Name + `"`
		case o.Value(&transport.Settings{}).Type() == "bool":
			d.def = "false"
		}
		docs = append(docs, d)
	}
	return append(docs,
		keyDoc{"decrypt", "false", "true", "sends encrypted datasets as plain text; their keys must be loaded"},
		keyDoc{"skip_checks", "-", `["pool-full"]`, "IDs of [checks](checks.md) to skip"})
}

// sameKeys are tables with the keys of another table.
var sameKeys = map[string]string{
	"job.target.retention": "job.retention", "job.target.retention.also": "job.retention.also",
	"job.target.transfer": "job.transfer", "job.target.transfer.bandwidth_window": "job.transfer.bandwidth_window",
	"job.target.drill": "job.drill", "job.notify": "notify",
}

// keyTypes returns the type of each key by table.
func keyTypes() map[string]map[string]string {
	out := map[string]map[string]string{}
	names := map[string]string{"string": "string", "bool": "boolean", "int": "number", "[]string": "list", "interface {}": "string or list"}
	var add func(table string, t reflect.Type)
	add = func(table string, t reflect.Type) {
		out[table] = map[string]string{}
		for _, f := range reflect.VisibleFields(t) {
			key, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			if key == "" || key == "-" {
				continue
			}
			of := f.Type
			for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Struct {
				of = of.Elem()
			}
			below := strings.TrimPrefix(table+"."+key, ".")
			switch {
			case of == reflect.TypeFor[calendar.Duration](), of == reflect.TypeFor[calendar.Grace]():
				out[table][key] = "time span"
			case of == reflect.TypeFor[replicate.Fraction]():
				out[table][key] = "percentage"
			case of.Kind() == reflect.Map:
				out[table][key] = "table"
			case of.Name() == "Time":
				out[table][key] = "time"
			case of.Name() == "Size":
				out[table][key] = "size"
			case of.Kind() == reflect.Struct && of.Name() != "Zone" && of.Name() != "Ports":
				out[table][key] = ""
				add(below, of)
			case names[of.String()] != "":
				out[table][key] = names[of.String()]
			default:
				out[table][key] = "string"
			}
		}
	}
	add("", reflect.TypeFor[replicate.File]())
	out["job.target.properties"]["carry"] = "boolean or list"
	out["job.target.properties"]["set"] = "table"
	return out
}

const renewReference = "UPDATE_GOLDEN=1 go test ./pkg/replicate/jobfile -run TestJobFileReference"

// TestJobFileReference expects docs/reference/job-file.md to document every key, with valid
// examples.
func TestJobFileReference(t *testing.T) {
	t.Parallel()
	docs, types := keyDocs(), keyTypes()
	for table, keys := range types {
		if strings.HasPrefix(table, "template") || table == "" || sameKeys[table] != "" {
			continue // a template has the keys of a job
		}
		var documented []string
		for _, d := range docs[table] {
			documented = append(documented, strings.Fields(d.keys)...)
		}
		for key, kind := range keys {
			hook := table == "job.after" || table == "job.alert" // on_failure belongs to before
			replaced := table == "job.target.snapshots" && slices.Contains([]string{"newest", "since", "latest_only"}, key)
			if kind != "" && !replaced && !(hook && key == "on_failure") {
				require.Contains(t, documented, key, "keyDocs lacks %s.%s", table, key)
			}
		}
		for _, key := range documented {
			require.Contains(t, keys, key, "[%s] has no key %s", table, key)
		}
	}
	for table, same := range sameKeys {
		require.Equal(t, types[same], types[table])
	}
	page := filepath.Join("..", "..", "..", "docs", "reference", "job-file.md")
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	region := regexp.MustCompile(`(?s)<!-- keys of (\S+): .*? -->\n.*?<!-- end -->`)
	var shown []string
	got := region.ReplaceAllStringFunc(string(raw), func(old string) string {
		table := region.FindStringSubmatch(old)[1]
		shown = append(shown, table)
		return fmt.Sprintf("<!-- keys of %s: %s -->\n\n%s\n<!-- end -->", table, renewReference, keyTable(t, table, docs[table], types[table]))
	})
	for table := range docs {
		if table != "job.after" && table != "job.alert" { // as job.before
			require.Contains(t, shown, table, "%s has no table for %s", page, table)
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(got), 0o644))
		return
	}
	require.Equal(t, got, string(raw), "docs/reference/job-file.md is stale; run: %s", renewReference)
}

// keyTable returns the Markdown table of some keys. It requires that the decoder accepts each
// example.
func keyTable(t *testing.T, table string, docs []keyDoc, types map[string]string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| key | type | default | example | meaning |\n|---|---|---|---|---|\n")
	for _, d := range docs {
		keys := strings.Fields(d.keys)
		for _, key := range keys {
			text := fmt.Sprintf("[%s]\n%s = %s\n", table, key, d.example)
			for _, list := range []string{"job", "job.target", "job.freeze", "job.before", "job.after", "job.retention.also", "job.transfer.bandwidth_window", "host"} {
				if table == list {
					text = fmt.Sprintf("[[%s]]\n%s = %s\n", table, key, d.example)
				}
			}
			// a table of a job needs the header of the job's list first
			if before, _, below := strings.Cut(table, "."); below {
				text = "[[" + before + "]]\n" + text
			}
			if strings.HasPrefix(table, "job.target.") {
				text = strings.Replace(text, "[[job]]\n", "[[job]]\n[[job.target]]\n", 1)
			}
			require.NoError(t, decode([]byte(text), &replicate.File{}), "%s", text)
		}
		def := d.def
		switch {
		case def == "":
			def = "required"
		case def == "-":
			def = ""
		case strings.HasPrefix(def, `"`) || slices.Contains([]string{"true", "false"}, def):
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", strings.Join(keys, "`, `"), types[keys[0]], def, d.example, strings.ReplaceAll(d.meaning, "|", `\|`))
	}
	return b.String()
}
