package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/calendar"
)

// zreplFile is a zrepl.yml. The Rest fields collect keys that are not converted.
type zreplFile struct {
	Jobs   []positioned[zreplJob] `yaml:"jobs"`
	Global map[string]yaml.Node   `yaml:"global"`
	Rest   map[string]yaml.Node   `yaml:",inline"`
}

type zreplJob struct {
	Name         string
	Type         string
	Filesystems  map[string]bool
	RootFS       string `yaml:"root_fs"`
	Interval     string
	Connect      zreplConnect
	Serve        zreplConnect
	Snapshotting zreplSnapshotting
	Pruning      struct {
		Keep         []positioned[keepRule]
		KeepSender   []positioned[keepRule] `yaml:"keep_sender"`
		KeepReceiver []positioned[keepRule] `yaml:"keep_receiver"`
		Rest         map[string]yaml.Node   `yaml:",inline"`
	}
	Send     zreplSend
	Recv     zreplRecv
	Conflict struct {
		Initial string               `yaml:"initial_replication"`
		Rest    map[string]yaml.Node `yaml:",inline"`
	} `yaml:"conflict_resolution"`
	Rest map[string]yaml.Node `yaml:",inline"`
}

type zreplConnect struct {
	Type, Address, Host, User, Port string
	IdentityFile                    string `yaml:"identity_file"`
	Options                         []string
	ListenerName                    string `yaml:"listener_name"`
	ClientIdentity                  string `yaml:"client_identity"`
}

type zreplSnapshotting struct {
	Type, Prefix, Interval, Cron string
	Format                       string               `yaml:"timestamp_format"`
	Location                     string               `yaml:"timestamp_location"`
	Rest                         map[string]yaml.Node `yaml:",inline"`
}

type zreplSend struct {
	Limit            zreplLimit           `yaml:"bandwidth_limit"`
	SendProperties   bool                 `yaml:"send_properties"`
	BackupProperties bool                 `yaml:"backup_properties"`
	Rest             map[string]yaml.Node `yaml:",inline"`
}

type zreplRecv struct {
	Limit      zreplLimit `yaml:"bandwidth_limit"`
	Properties struct {
		Override map[string]string
		Inherit  []string
	}
	Rest map[string]yaml.Node `yaml:",inline"`
}

type zreplLimit struct {
	Max  string
	Rest map[string]yaml.Node `yaml:",inline"`
}

// positioned is a YAML value and the line where it starts.
type positioned[T any] struct {
	value T
	line  int
}

// UnmarshalYAML decodes the value.
func (l *positioned[T]) UnmarshalYAML(n *yaml.Node) error {
	l.line = n.Line
	return n.Decode(&l.value)
}

// zrepl makes jobs for the push, pull and snap jobs of a file.
func (s *state) zrepl(file string, text []byte) error {
	f := &zreplFile{}
	if err := yaml.Unmarshal(text, f); err != nil {
		why := strings.TrimPrefix(err.Error(), "yaml: ")
		if all := new(yaml.TypeError); errors.As(err, &all) {
			why = all.Errors[0]
		}
		if m := regexp.MustCompile(`(?s)^line (\d+): (.*)$`).FindStringSubmatch(why); m != nil {
			return fault.Usagef("", "%s:%s: %s", file, m[1], m[2])
		}
		return fault.Usagef("", "%s: %s", file, why)
	}
	if len(f.Jobs) == 0 {
		return fault.Usagef("import the files that it includes", "%s: it has no jobs", file)
	}
	z := &zrepl{state: s, file: file, jobs: f.Jobs}
	z.unconverted(nil, "global.", f.Global)
	z.unconverted(nil, "", f.Rest)
	first := len(s.drafts)
	for _, j := range f.Jobs {
		if err := z.job(j); err != nil {
			return err
		}
	}
	if len(s.drafts) > first {
		at := s.drafts[first].where
		s.addEntry(nil, at, "snapshots", "write patterns of other snapshots to send into snapshots.adopt: a job sends and destroys only snapshots of take and adopt, zrepl sends all")
		s.addEntry(nil, at, "zrepl.service", `before the first run, stop zrepl's daemon, and list the snapshots that the run will destroy: zxfer replicate check -v; "zrepl zfs-abstraction release-all" releases its holds and bookmarks`)
	}
	return nil
}

// zrepl converts the jobs of one file.
type zrepl struct {
	*state
	file string
	jobs []positioned[zreplJob]
}

func (z *zrepl) where(line int) string { return fmt.Sprintf("%s:%d", z.file, line) }

// unconverted adds entries for keys that are not converted.
func (z *zrepl) unconverted(d *draft, at string, keys map[string]yaml.Node) {
	byLine := func(a, b string) int { return cmp.Compare(keys[a].Line, keys[b].Line) }
	for _, key := range slices.SortedFunc(maps.Keys(keys), byLine) {
		n := keys[key]
		do, known := zreplAdvice()[at+key]
		switch {
		case !known && at == "global.":
			do = "nothing: zxfer has no daemon"
		case !known:
			do = "convert it manually: the importer supports only zrepl 0.6 and 0.7"
		case do == "":
			continue
		}
		what := at + key
		if n.Kind == yaml.ScalarNode {
			what += ": " + n.Value
		}
		z.addEntry(d, z.where(n.Line), what, "%s", do)
	}
}

// zreplAdvice returns what to do about keys that are not converted. It returns "" if zxfer always
// behaves that way.
func zreplAdvice() map[string]string {
	return map[string]string{
		"include":           "import the included files too",
		"global.logging":    "nothing: runs log to standard error, units to the journal; zxfer replicate log shows the records",
		"global.monitoring": `write [metrics] textfile = "/PATH/zxfer.prom" for node_exporter's textfile collector`,
		"replication":       "write holds, bookmarks and parallel into the job unless the defaults both, sent and 2 fit",
		"snapshotting.hooks": `write [[job.freeze]]: kind = "command" with the command as a list in freeze and thaw, which has ZXFER_HOOK in place of ZREPL_HOOKTYPE; ` +
			`for postgres-checkpoint "postgresql", for mysql-lock-tables "mysql", with the settings of the dsn as keys, and its password in a file`,
		"send.raw": "", "send.compressed": "", "send.large_blocks": "", "send.embedded_data": "",
		"send.encrypted": "nothing, if raw streams fit: zxfer sends encrypted datasets raw unless transfer.decrypt = true, and also sends unencrypted ones",
	}
}

// span parses "10m", "1h", "30d", "2w".
func (z *zrepl) span(line int, s string) (time.Duration, error) {
	text := strings.TrimSpace(s)
	if weeks, ok := strings.CutSuffix(text, "w"); ok {
		n, _ := strconv.Atoi(weeks) // 0 is refused below
		text = fmt.Sprintf("%dd", 7*n)
	}
	var d calendar.Duration
	if err := d.UnmarshalText([]byte(text)); err != nil || d <= 0 || time.Duration(d) > longest {
		return 0, fault.Usagef("write 10m, 1h, 14d or 2w", "%s: %q is not a time span", z.where(line), s)
	}
	return time.Duration(d), nil
}
