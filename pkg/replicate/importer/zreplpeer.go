package importer

import (
	"path"
	"strings"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

// peer is where the copies of a job go.
type peer struct {
	where string
	host  string // as endpoint.Endpoint has it, "" = this one
	root  string // copies are below it, "" where that is not known
	rsh   string
	plain string // transport that is replaced by ssh and a connection of zxfer's
	sink  value  // the sink job, if it is known
}

// place is the target of a draft.
func (p *peer) place(d *draft) string {
	root := p.root
	if root == "" {
		root = "ROOT_FS/CLIENT_IDENTITY"
	}
	return endpoint.Endpoint{Host: p.host, Name: root + "/" + d.Source}.String()
}

// peer finds the sink of a push job.
func (z *zrepl) peer(j *zjob) (*peer, error) {
	p, err := z.connection(j)
	if err != nil {
		return nil, err
	}
	connect, err := j.get("connect")
	if err != nil {
		return nil, err
	}
	identity, err := connect.textOf("client_identity")
	if err != nil {
		return nil, err
	}
	listener, err := connect.textOf("listener_name")
	if err != nil {
		return nil, err
	}
	kind, err := connect.textOf("type")
	if err != nil {
		return nil, err
	}
	var found []*zjob
	for _, s := range z.all {
		if s.kind != "sink" {
			continue
		}
		served, clients, name, err := s.serves()
		if err != nil {
			return nil, err
		}
		if served == "stdinserver" {
			served = "ssh+stdinserver"
		}
		switch {
		case served != kind || kind == "local" && name != listener:
		case kind == "local":
			found = append(found, s)
		case len(clients) == 1:
			identity, found = clients[0], append(found, s)
		}
	}
	if len(found) != 1 || identity == "" {
		return p, nil
	}
	root, err := found[0].textOf("root_fs")
	if err != nil {
		return nil, err
	}
	if p.root, err = dataset(found[0].where(), path.Join(strings.Trim(root, "/"), identity)); err != nil {
		return nil, err
	}
	found[0].used, p.sink = true, found[0].value
	return p, nil
}

// serves is how a sink is reached, and by which clients.
func (j *zjob) serves() (kind string, clients []string, listener string, err error) {
	v, err := j.get("serve")
	if err != nil {
		return "", nil, "", err
	}
	if kind, err = v.textOf("type"); err != nil {
		return "", nil, "", err
	}
	if listener, err = v.textOf("listener_name"); err != nil {
		return "", nil, "", err
	}
	key := map[string]string{"tls": "client_cns", "stdinserver": "client_identities", "tcp": "clients"}[kind]
	if key == "" {
		return kind, nil, listener, nil
	}
	at, err := v.get(key)
	if err != nil {
		return "", nil, "", err
	}
	if key != "clients" {
		clients, err = at.texts()
		return kind, clients, listener, err
	}
	all, err := at.pairs()
	for _, p := range all {
		name, errText := p.to.text()
		if err == nil {
			err = errText
		}
		if strings.Contains(name, "*") {
			name = ""
		}
		clients = append(clients, name)
	}
	return kind, clients, listener, err
}

// hostOf is the host of "host:port" or "[address]:port".
func hostOf(address string) string {
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return address
	}
	return strings.TrimSuffix(strings.TrimPrefix(address[:i], "["), "]")
}

// connection reads how a job reaches the other host.
func (z *zrepl) connection(j *zjob) (*peer, error) {
	v, err := j.get("connect")
	if err != nil {
		return nil, err
	}
	p := &peer{where: v.where()}
	if !v.there() {
		p.where = j.where()
	}
	kind, err := v.textOf("type")
	if err != nil {
		return nil, err
	}
	switch kind {
	case "local":
		return p, nil
	case "tcp", "tls":
		p.plain = kind
		address, err := v.textOf("address")
		if err != nil {
			return nil, err
		}
		p.host = hostOf(address)
	case "ssh+stdinserver":
		if err := p.ssh(v); err != nil {
			return nil, err
		}
	default:
		return nil, fault.Usagef("ssh+stdinserver, tls, tcp and local are known", "%s: connect of type %q", p.where, kind)
	}
	if e, err := endpoint.Parse(endpoint.Endpoint{Host: p.host, Name: "a"}.String()); err != nil || e.Local() || e.Host != p.host {
		return nil, fault.Usagef("", "%s: connect: %q is no host", p.where, p.host)
	}
	return p, nil
}

func (p *peer) ssh(v value) error {
	host, err := v.textOf("host")
	if err != nil {
		return err
	}
	user, err := v.textOf("user")
	if err != nil {
		return err
	}
	if p.host = host; user != "" {
		p.host = user + "@" + host
	}
	key, err := v.textOf("identity_file")
	if err != nil {
		return err
	}
	port, err := v.textOf("port")
	if err != nil {
		return err
	}
	at, err := v.get("options")
	if err != nil {
		return err
	}
	options, err := at.texts()
	if err != nil {
		return err
	}
	argv := []string{"ssh"}
	if key != "" {
		argv = append(argv, "-i", key)
	}
	if port != "" && port != "22" {
		argv = append(argv, "-p", port)
	}
	for _, o := range options {
		argv = append(argv, "-o", o)
	}
	if len(argv) > 1 {
		p.rsh = shellquote.Join(argv...)
	}
	return nil
}

// overSSH reports what a host needs that zrepl reached otherwise.
func (z *zrepl) overSSH(d *draft, p *peer) {
	switch {
	case p.plain != "":
		z.note(d, p.where, "connect: "+p.plain, ByHand, "the host is reached over ssh, by a key; data goes over a connection of its own, without certificates or ports to set up: see that ssh %s works for the user of the job", p.host)
	case p.rsh != "":
		z.note(d, p.where, "connect: ssh+stdinserver", ByHand, "the key's authorized_keys line starts zrepl: on the other host replace it by what zxfer replicate authorize prints")
	}
}
