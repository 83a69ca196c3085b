package importer

import (
	"path"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// job converts one job. Sinks and sources are passive in zrepl; in zxfer the job on the other host
// does their work over ssh.
func (z *zrepl) job(j positioned[zreplJob]) error {
	switch j.value.Type {
	case "push":
		return z.push(&j.value, j.line)
	case "pull":
		return z.pull(&j.value, j.line)
	case "snap":
		return z.snap(&j.value, j.line)
	case "source":
		z.addEntry(nil, z.where(j.line), j.value.Name, "write its filesystems and snapshotting into the job on the pulling host, as source, snapshots.take and schedule; "+
			"restrict its key with zxfer replicate authorize --allow send=DATASET")
		return nil
	case "sink":
		if j.value.Serve.Type != "local" {
			z.addEntry(nil, z.where(j.line), j.value.Name, "nothing: the job runs on the sending host; restrict its key with zxfer replicate authorize --allow receive=%s --append-only", zfs.CommandLine([]string{j.value.RootFS}))
		}
		return nil
	}
	return fault.Usagef("use push, pull, snap, source or sink", "%s: job %q: type %q", z.where(j.line), j.value.Name, j.value.Type)
}

// snap adds the drafts of a snap job.
func (z *zrepl) snap(j *zreplJob, line int) error {
	drafts, err := z.sources(j, line)
	if err != nil {
		return err
	}
	for _, d := range drafts {
		prefix, err := z.snapshots(d, j, line)
		if err != nil {
			return err
		}
		if d.Retention, err = z.retention(d, "retention", j.Pruning.Keep, prefix); err != nil {
			return err
		}
		if d.Snapshots.Take == "" && d.Retention == nil {
			z.addEntry(nil, d.where, j.Name, "nothing: it neither takes nor destroys snapshots")
			continue
		}
		z.add(d)
		z.unconverted(d, "", j.Rest)
	}
	return nil
}

// push adds the drafts of a push job.
func (z *zrepl) push(j *zreplJob, line int) error {
	drafts, err := z.sources(j, line)
	if err != nil {
		return err
	}
	for _, d := range drafts {
		z.add(d)
		host, err := z.connect(d, &j.Connect, line)
		if err != nil {
			return err
		}
		root, recv := "ROOT_FS/CLIENT_IDENTITY", &zreplRecv{}
		if sink := z.sink(&j.Connect); sink != nil {
			recv = &sink.Recv
			if root, err = dataset(z.where(line), path.Join(sink.RootFS, j.Connect.ClientIdentity)); err != nil {
				return err
			}
		} else {
			d.noTarget = true
			z.addEntry(d, z.where(line), "connect", "write the target: root_fs of the other host's sink job, and below it the client's identity and the source")
		}
		d.Targets = []replicate.Target{{Name: targetName, To: endpoint.Endpoint{Host: host, Name: root + "/" + d.Source}.String()}}
		if err := z.transfer(d, j, recv, line); err != nil {
			return err
		}
		if d.Schedule == "" && j.Snapshotting.manual() {
			z.addEntry(d, z.where(line), "snapshotting: manual", "to run the job automatically, write schedule")
		}
	}
	return nil
}

// pull adds the draft of a pull job. The other host's configuration determines what it pulls.
func (z *zrepl) pull(j *zreplJob, line int) error {
	d := z.add(&draft{where: z.where(line), preferredName: j.Name, noSource: true, noTarget: true, Job: replicate.Job{Recursive: true}})
	host, err := z.connect(d, &j.Connect, line)
	if err != nil {
		return err
	}
	root, err := dataset(d.where, j.RootFS)
	if err != nil {
		return err
	}
	d.Source = endpoint.Endpoint{Host: host, Name: placeholder}.String()
	d.Targets = []replicate.Target{{Name: targetName, To: root + "/" + placeholder}}
	z.addEntry(d, d.where, "source, target", "write both: the remote source job lists the filesystems, and zrepl keeps their copies at %s/SOURCE", root)
	j.Snapshotting = zreplSnapshotting{}
	if err := z.transfer(d, j, &j.Recv, line); err != nil {
		return err
	}
	if j.Interval == "" || j.Interval == "manual" {
		z.addEntry(d, d.where, "interval: manual", "to run the job automatically, write schedule")
		return nil
	}
	return z.every(d, line, j.Interval)
}

// transfer converts what push and pull jobs have in common.
func (z *zrepl) transfer(d *draft, j *zreplJob, recv *zreplRecv, line int) error {
	prefix, err := z.snapshots(d, j, line)
	if err != nil {
		return err
	}
	t := &d.Targets[0]
	if d.Retention, err = z.retention(d, "retention", j.Pruning.KeepSender, prefix); err != nil {
		return err
	}
	if t.Retention, err = z.retention(d, "target.retention", j.Pruning.KeepReceiver, prefix); err != nil {
		return err
	}
	t.Properties = replicate.Properties{Set: recv.Properties.Override}
	if j.Send.SendProperties || j.Send.BackupProperties {
		t.Properties.Carry = true
	}
	for _, name := range recv.Properties.Inherit {
		if _, set := t.Properties.Set[name]; !set {
			t.Properties.Exclude = append(t.Properties.Exclude, name)
		}
	}
	switch j.Conflict.Initial {
	case "", "most_recent":
		d.First = plan.FirstNewest
	case "all":
	case "fail":
		d.First = plan.FirstFail
	default:
		return fault.Usagef("use most_recent, all or fail", "%s: job %q: initial_replication %q", z.where(line), j.Name, j.Conflict.Initial)
	}
	z.unconverted(d, "conflict_resolution.", j.Conflict.Rest)
	z.limit(d, line, j.Send.Limit)
	z.limit(d, line, recv.Limit)
	z.unconverted(d, "send.", j.Send.Rest)
	z.unconverted(d, "recv.", recv.Rest)
	z.unconverted(d, "pruning.", j.Pruning.Rest)
	z.unconverted(d, "", j.Rest)
	return nil
}

func (s *zreplSnapshotting) manual() bool { return s.Type == "" || s.Type == "manual" }

// snapshots converts when a job takes snapshots. For a job that takes none, it adopts those that
// the pruning rules count. prefix is the prefix of their names.
func (z *zrepl) snapshots(d *draft, j *zreplJob, line int) (prefix string, err error) {
	s := &j.Snapshotting
	z.unconverted(d, "snapshotting.", s.Rest)
	if prefix = s.Prefix; s.manual() {
		prefix = countedPrefix(j)
		d.Snapshots.Adopt = []string{literal(prefix) + "*"}
		return prefix, nil
	}
	if d.Snapshots.Take = s.template(); d.Snapshots.Take == "" {
		d.Snapshots = replicate.Snapshots{Take: replicate.DefaultTemplate, Adopt: []string{literal(prefix) + "*"}}
		z.addEntry(d, z.where(line), "timestamp_format", "nothing: zxfer cannot create names of this form, so it names new snapshots %s, and adopts those of zrepl", replicate.DefaultTemplate)
	}
	switch s.Type {
	case "periodic":
		return prefix, z.every(d, line, s.Interval)
	case "cron":
		var ok bool
		if d.Schedule, ok = cron(s.Cron); !ok {
			z.addEntry(d, z.where(line), "cron: "+s.Cron, "write schedule (systemd.time(7)): no calendar event matches exactly")
		}
		return prefix, nil
	}
	return "", fault.Usagef("use periodic, cron or manual", "%s: snapshotting of type %q", z.where(line), s.Type)
}

// every converts an interval to the job's schedule.
func (z *zrepl) every(d *draft, line int, interval string) error {
	span, err := z.span(line, interval)
	if err != nil {
		return err
	}
	var ok bool
	if d.Schedule, ok = intervalEvent(span); !ok {
		z.addEntry(d, z.where(line), "interval: "+interval, "write schedule: the interval divides neither an hour nor a day, so no calendar event matches exactly")
	}
	return nil
}

// template returns a snapshot template that matches zrepl's names, so that its snapshots count as
// the job's own. It returns "" if the names cannot be parsed as times.
func (s *zreplSnapshotting) template() string {
	t := ""
	switch strings.ToLower(s.Format) {
	case "", "dense":
		t = s.Prefix + "%Y%m%d_%H%M%S_000" // the milliseconds are always 000
	case "human":
		t = s.Prefix + "%Y-%m-%d_%H:%M:%S"
	}
	if _, err := replicate.NewNaming(t, "job"); err != nil || strings.ContainsAny(s.Prefix, "%{}") || s.Location != "" && s.Location != "UTC" {
		return ""
	}
	return t
}

// sink returns the local job that receives from c, or nil if it is on another host or in another
// file.
func (z *zrepl) sink(c *zreplConnect) *zreplJob {
	for i := range z.jobs {
		s := &z.jobs[i].value
		if c.Type == "local" && s.Type == "sink" && s.Serve.Type == "local" && s.Serve.ListenerName == c.ListenerName {
			return s
		}
	}
	return nil
}

// connect converts how a job connects to the other host. It returns "" for the local host.
func (z *zrepl) connect(d *draft, c *zreplConnect, line int) (host string, err error) {
	where := z.where(line)
	switch c.Type {
	case "local":
		return "", nil
	case "tcp", "tls":
		host = c.Address
		if i := strings.LastIndexByte(host, ':'); i >= 0 {
			host = strings.Trim(host[:i], "[]")
		}
		z.addEntry(d, where, "connect: "+c.Type, "check that ssh %s works for the user of the job; data uses a separate connection, which needs no certificates", host)
	case "ssh+stdinserver":
		if host = c.Host; c.User != "" {
			host = c.User + "@" + host
		}
		argv := []string{"ssh"}
		if c.IdentityFile != "" {
			argv = append(argv, "-i", c.IdentityFile)
		}
		if c.Port != "" && c.Port != "22" {
			argv = append(argv, "-p", c.Port)
		}
		for _, o := range c.Options {
			argv = append(argv, "-o", o)
		}
		d.shell(argv)
		z.addEntry(d, where, "connect: ssh+stdinserver", "on the remote host, replace the key's authorized_keys line, which starts zrepl, with the output of zxfer replicate authorize")
	default:
		return "", fault.Usagef("use ssh+stdinserver, tls, tcp or local", "%s: connect of type %q", where, c.Type)
	}
	e, err := endpoint.Parse(endpoint.Endpoint{Host: host, Name: "a"}.String())
	if err != nil || e.Local() || e.Host != host {
		return "", fault.Usagef("", "%s: connect: %q is not a host", where, host)
	}
	return host, nil
}

// limit converts a bandwidth limit.
func (z *zrepl) limit(d *draft, line int, l zreplLimit) {
	z.unconverted(d, "bandwidth_limit.", l.Rest)
	if l.Max == "" || strings.HasPrefix(l.Max, "-") {
		return // no limit
	}
	if n, err := size.Parse(l.Max); err == nil && strings.HasSuffix(l.Max, "B") {
		d.limit(size.Size(n))
		return
	}
	z.addEntry(d, z.where(line), "bandwidth_limit: "+l.Max, `write transfer.bandwidth = "10MiB", in bytes per second`)
}
