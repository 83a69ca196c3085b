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

// job makes drafts of a job. Sinks and sources are the passive ends: the job on
// the other side does their work over ssh.
func (z *zrepl) job(j lined[zreplJob]) error {
	switch j.is.Type {
	case "push":
		return z.push(&j.is, j.line)
	case "pull":
		return z.pull(&j.is, j.line)
	case "snap":
		return z.snap(&j.is, j.line)
	case "source":
		z.left(nil, z.where(j.line), j.is.Name, "write its filesystems and snapshotting into the job on the host that pulls, as source, snapshots.take and schedule; "+
			"zxfer replicate authorize --allow send=DATASET restricts what that may read")
		return nil
	case "sink":
		if j.is.Serve.Type != "local" {
			z.left(nil, z.where(j.line), j.is.Name, "nothing: the job on the host that sends does all; zxfer replicate authorize --allow receive=%s --append-only restricts what it may do", zfs.CommandLine([]string{j.is.RootFS}))
		}
		return nil
	}
	return fault.Usagef("push, pull, snap, source and sink are known", "%s: job %q: type %q", z.where(j.line), j.is.Name, j.is.Type)
}

// snap makes the drafts of a snap job.
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
		if d.Retention, err = z.keep(d, "retention", j.Pruning.Keep, prefix); err != nil {
			return err
		}
		if d.Snapshots.Take == "" && d.Retention == nil {
			z.left(nil, d.where, j.Name, "nothing: it takes no snapshots by itself, and removes none")
			continue
		}
		z.add(d)
		z.rest(d, "", j.Rest)
	}
	return nil
}

// push makes the drafts of a push job.
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
			z.left(d, z.where(line), "connect", "write the target: root_fs of the other host's sink job, and below it the client's identity and the source")
		}
		d.Targets = []replicate.Target{{Name: targetName, To: endpoint.Endpoint{Host: host, Name: root + "/" + d.Source}.String()}}
		if err := z.sends(d, j, recv, line); err != nil {
			return err
		}
		if d.Schedule == "" && j.Snapshotting.manual() {
			z.left(d, z.where(line), "snapshotting: manual", "write schedule, if the job is to run by itself: it stays manual")
		}
	}
	return nil
}

// pull makes the draft of a pull job. What it pulls is the other host's to say.
func (z *zrepl) pull(j *zreplJob, line int) error {
	d := z.add(&draft{where: z.where(line), wish: j.Name, noSource: true, noTarget: true, Job: replicate.Job{Recursive: true}})
	host, err := z.connect(d, &j.Connect, line)
	if err != nil {
		return err
	}
	root, err := dataset(d.where, j.RootFS)
	if err != nil {
		return err
	}
	d.Source = endpoint.Endpoint{Host: host, Name: unknownDataset}.String()
	d.Targets = []replicate.Target{{Name: targetName, To: root + "/" + unknownDataset}}
	z.left(d, d.where, "source, target", "write both: the other host's source job names the filesystems, and zrepl keeps a copy at %s/SOURCE", root)
	j.Snapshotting = zreplSnapshotting{}
	if err := z.sends(d, j, &j.Recv, line); err != nil {
		return err
	}
	if j.Interval == "" || j.Interval == "manual" {
		z.left(d, d.where, "interval: manual", "write schedule, if the job is to run by itself: it stays manual")
		return nil
	}
	return z.every(d, line, j.Interval)
}

// sends carries over what push and pull jobs have in common.
func (z *zrepl) sends(d *draft, j *zreplJob, recv *zreplRecv, line int) error {
	prefix, err := z.snapshots(d, j, line)
	if err != nil {
		return err
	}
	t := &d.Targets[0]
	if d.Retention, err = z.keep(d, "retention", j.Pruning.KeepSender, prefix); err != nil {
		return err
	}
	if t.Retention, err = z.keep(d, "target.retention", j.Pruning.KeepReceiver, prefix); err != nil {
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
		return fault.Usagef("most_recent, all and fail are known", "%s: job %q: initial_replication %q", z.where(line), j.Name, j.Conflict.Initial)
	}
	z.rest(d, "conflict_resolution.", j.Conflict.Rest)
	z.limit(d, line, j.Send.Limit)
	z.limit(d, line, recv.Limit)
	z.rest(d, "send.", j.Send.Rest)
	z.rest(d, "recv.", recv.Rest)
	z.rest(d, "pruning.", j.Pruning.Rest)
	z.rest(d, "", j.Rest)
	return nil
}

func (s *zreplSnapshotting) manual() bool { return s.Type == "" || s.Type == "manual" }

// snapshots carries over which snapshots a job takes, and when, or without any
// adopts those that it counts. prefix is what the names begin with.
func (z *zrepl) snapshots(d *draft, j *zreplJob, line int) (prefix string, err error) {
	s := &j.Snapshotting
	z.rest(d, "snapshotting.", s.Rest)
	if prefix = s.Prefix; s.manual() {
		prefix = prefixOf(j)
		d.Snapshots.Adopt = []string{literal(prefix) + "*"}
		return prefix, nil
	}
	if d.Snapshots.Take = s.template(); d.Snapshots.Take == "" {
		d.Snapshots = replicate.Snapshots{Take: replicate.DefaultTemplate, Adopt: []string{literal(prefix) + "*"}}
		z.left(d, z.where(line), "timestamp_format", "nothing: names of this form cannot be written, so new snapshots are named %s, and those of zrepl adopted", replicate.DefaultTemplate)
	}
	switch s.Type {
	case "periodic":
		return prefix, z.every(d, line, s.Interval)
	case "cron":
		var ok bool
		if d.Schedule, ok = cron(s.Cron); !ok {
			z.left(d, z.where(line), "cron: "+s.Cron, "write schedule as systemd.time(7) says: no calendar event means just this")
		}
		return prefix, nil
	}
	return "", fault.Usagef("periodic, cron and manual are known", "%s: snapshotting of type %q", z.where(line), s.Type)
}

// every carries over an interval as the job's schedule.
func (z *zrepl) every(d *draft, line int, interval string) error {
	span, err := z.span(line, interval)
	if err != nil {
		return err
	}
	var ok bool
	if d.Schedule, ok = every(span); !ok {
		z.left(d, z.where(line), "interval: "+interval, "write schedule: it divides neither an hour nor a day, and no calendar event means just this")
	}
	return nil
}

// template is the naming of zrepl's snapshots, so that those that it took count
// as the job's own; "" where its names cannot be told as times.
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

// sink is the job that a job on this host sends to, nil where it is elsewhere or
// not in the file.
func (z *zrepl) sink(c *zreplConnect) *zreplJob {
	for i := range z.jobs {
		s := &z.jobs[i].is
		if c.Type == "local" && s.Type == "sink" && s.Serve.Type == "local" && s.Serve.ListenerName == c.ListenerName {
			return s
		}
	}
	return nil
}

// connect carries over how a job reaches the other host, "" for this one.
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
		z.left(d, where, "connect: "+c.Type, "see that ssh %s works for the user of the job: data has a connection of its own, without certificates or ports to set up", host)
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
		z.left(d, where, "connect: ssh+stdinserver", "replace the key's line in authorized_keys on the other host, which starts zrepl, by what zxfer replicate authorize prints")
	default:
		return "", fault.Usagef("ssh+stdinserver, tls, tcp and local are known", "%s: connect of type %q", where, c.Type)
	}
	e, err := endpoint.Parse(endpoint.Endpoint{Host: host, Name: "a"}.String())
	if err != nil || e.Local() || e.Host != host {
		return "", fault.Usagef("", "%s: connect: %q is not a host", where, host)
	}
	return host, nil
}

// limit carries over a limit of the rate.
func (z *zrepl) limit(d *draft, line int, l zreplLimit) {
	z.rest(d, "bandwidth_limit.", l.Rest)
	if l.Max == "" || strings.HasPrefix(l.Max, "-") {
		return // there is none
	}
	if n, err := size.Parse(l.Max); err == nil && strings.HasSuffix(l.Max, "B") {
		d.limit(size.Size(n))
		return
	}
	z.left(d, z.where(line), "bandwidth_limit: "+l.Max, `write transfer.bandwidth = "10MiB", or what that is in bytes per second`)
}
