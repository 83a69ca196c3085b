package importer

import (
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// zrepl collects the jobs of zrepl.yml files.
type zrepl struct {
	*state
	all []*zjob
}

// zjob is one job of zrepl.
type zjob struct {
	value
	name, kind string
	filter     filter
	shots      shots
	used       bool // a snap job whose snapshots another job took over
}

// shots is how a zrepl job takes snapshots.
type shots struct {
	where    string
	manual   bool
	prefix   string
	take     string        // template of the names, "" where zxfer cannot write them
	spec     string        // calendar event
	interval time.Duration // 0 = not known
}

// read reads the jobs of a file.
func (z *zrepl) read(file string, text []byte) error {
	doc, err := parseYAML(file, text)
	if err != nil {
		return err
	}
	top, err := doc.pairs()
	if err != nil {
		return err
	}
	found := false
	for _, p := range top {
		switch p.key {
		case "jobs":
			found = true
			jobs, err := p.to.list()
			if err != nil {
				return err
			}
			for _, j := range jobs {
				if err := z.readJob(j); err != nil {
					return err
				}
			}
		case "include":
			found = true
			z.note(nil, p.at.where(), p.key, ByHand, "import the included files in the same command")
		case "global":
			if err := z.global(p.to); err != nil {
				return err
			}
		default:
			z.note(nil, p.at.where(), p.key, Dropped, "it is not known to this importer, which knows zrepl 0.6 and 0.7")
		}
	}
	if !found {
		return fault.Usagef("", "%s: it has no jobs", file)
	}
	return nil
}

func (z *zrepl) global(v value) error {
	all, err := v.pairs()
	if err != nil {
		return err
	}
	for _, p := range all {
		class, why := Dropped, "there is no daemon, and none of its settings"
		switch p.key {
		case "logging":
			class, why = Changed, "a run writes to standard error, a unit's is in the journal; zxfer replicate log shows the records"
		case "monitoring":
			class, why = ByHand, "write [metrics] textfile = \"/PATH/zxfer.prom\" into the job file: figures for node_exporter's textfile collector"
		}
		z.note(nil, p.at.where(), "global."+p.key, class, "%s", why)
	}
	return nil
}

func (z *zrepl) readJob(v value) error {
	j := &zjob{value: v}
	var err error
	if j.name, err = v.textOf("name"); err != nil {
		return err
	}
	if j.kind, err = v.textOf("type"); err != nil {
		return err
	}
	if !slices.Contains([]string{"push", "pull", "snap", "source", "sink"}, j.kind) {
		return fault.Usagef("push, pull, snap, source and sink are known", "%s: job %q: type %q", v.where(), j.name, j.kind)
	}
	fs, err := v.get("filesystems")
	if err != nil {
		return err
	}
	if j.filter, err = parseFilter(fs); err != nil {
		return err
	}
	if j.shots, err = z.readShots(v); err != nil {
		return err
	}
	z.all = append(z.all, j)
	return nil
}

// readShots reads how a job takes snapshots.
func (z *zrepl) readShots(v value) (shots, error) {
	s := shots{manual: true}
	at, err := v.get("snapshotting")
	if err != nil || !at.there() {
		return s, err
	}
	s.where = at.where()
	kind, err := at.textOf("type")
	if err != nil {
		return s, err
	}
	if s.prefix, err = at.textOf("prefix"); err != nil {
		return s, err
	}
	switch kind {
	case "", "manual":
		return s, nil
	case "periodic":
		text, err := at.textOf("interval")
		if err != nil {
			return s, err
		}
		if s.interval, err = zreplDuration(text); err != nil {
			return s, fault.Usagef("", "%s: interval: %w", at.where(), err)
		}
		s.spec = z.spec(at.where(), s.interval)
	case "cron":
		text, err := at.textOf("cron")
		if err != nil {
			return s, err
		}
		if s.spec, err = cron(strings.Fields(text)); err != nil {
			return s, fault.Usagef("import it without, then write schedule as systemd.time(7) says", "%s: cron: %w", at.where(), err)
		}
	default:
		return s, fault.Usagef("periodic, cron and manual are known", "%s: snapshotting of type %q", at.where(), kind)
	}
	s.manual = false
	format, err := at.textOf("timestamp_format")
	if err != nil {
		return s, err
	}
	zone, err := at.textOf("timestamp_location")
	if err != nil {
		return s, err
	}
	s.take = template(s.prefix, format, zone)
	return s, nil
}

// spec is an interval as a calendar event.
func (z *zrepl) spec(where string, d time.Duration) string {
	spec, exact := every(d)
	if !exact {
		z.note(nil, where, "interval: "+replicate.Duration(d).String(), Changed, "it divides neither an hour nor a day: it became %q", spec)
	}
	return spec
}

// template is the naming of zrepl's snapshots, so that those that it took count
// as the job's own; "" where its names cannot be told as times.
func template(prefix, format, zone string) string {
	if zone != "" && zone != "UTC" {
		return ""
	}
	t := ""
	switch strings.ToLower(format) {
	case "", "dense":
		t = prefix + "%Y%m%d_%H%M%S_000" // the milliseconds are always 000
	case "human":
		t = prefix + "%Y-%m-%d_%H:%M:%S"
	default:
		return ""
	}
	if _, err := replicate.NewNaming(t, "job"); err != nil || strings.ContainsAny(prefix, "%{}") {
		return ""
	}
	return t
}

// snapshots is what a job sends and removes: its own, of zrepl's names, or
// where there is no such template under names of zxfer's besides them.
func (z *zrepl) snapshots(d *draft, s shots) {
	switch {
	case s.manual:
		return
	case s.take != "":
		d.Snapshots.Take = s.take
	default:
		d.Snapshots.Take = replicate.DefaultTemplate
		if s.prefix != "" {
			d.Snapshots.Adopt = []string{literal(s.prefix) + "*"}
		}
		z.note(d, s.where, "timestamp_format", Changed, "names of this form cannot be written: new snapshots are named %s, those of zrepl are adopted", replicate.DefaultTemplate)
	}
	d.Schedule = s.spec
}

// hooksOf makes comments of the hooks around a job's snapshots.
func (z *zrepl) hooksOf(d *draft, j *zjob) error {
	at, err := j.get("snapshotting")
	if err != nil || !at.there() {
		return err
	}
	v, err := at.get("hooks")
	if err != nil {
		return err
	}
	hooks, err := v.list()
	if err != nil {
		return err
	}
	for _, h := range hooks {
		kind, err := h.textOf("type")
		if err != nil {
			return err
		}
		if kind != "command" {
			z.note(d, h.where(), "hook of type "+kind, ByHand, "write a command for [[job.before]] that does the same")
			continue
		}
		name, err := h.textOf("path")
		if err != nil {
			return err
		}
		timeout, err := h.textOf("timeout")
		if err != nil {
			return err
		}
		span := 30 * time.Second
		if timeout != "" {
			if span, err = zreplDuration(timeout); err != nil {
				return fault.Usagef("", "%s: timeout: %w", h.where(), err)
			}
		}
		fatal, err := h.get("err_is_fatal")
		if err != nil {
			return err
		}
		stop, err := fatal.boolean()
		if err != nil {
			return err
		}
		before := replicate.Hook{Command: []string{name}, Timeout: replicate.Duration(span)}
		after := before
		if !stop {
			before.OnFailure = "continue"
		}
		d.hooks = append(d.hooks, hook{"before", before}, hook{"after", after})
		z.note(d, h.where(), "hook "+name, ByHand, "in the job as comments: here it runs once before the run's snapshots and once at the end of the run, when all is sent, "+
			"without ZREPL_ variables; uncomment what serves")
	}
	return nil
}
