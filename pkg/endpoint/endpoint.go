// Package endpoint parses the two ends of a transfer as users type them.
//
//   - Endpoint: "[user@]host:NAME", or "NAME" for the local host.
//   - Path: a NAME that starts with "/", or on the local host with "./" or "../".
//     It names a device, an image file or a mounted directory.
//   - Dataset: any other NAME.
//
// It does not check whether hosts and names exist.
package endpoint

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"zxfer/pkg/fault"
)

// Endpoint is one end of a transfer.
type Endpoint struct {
	Host string // as ssh takes it, possibly with "user@"; "" for the local host
	Name string // "tank/ds@snap", "pool", "pool/", "/dev/sda"
}

// Local reports whether the endpoint is on the local host.
func (e Endpoint) Local() bool { return e.Host == "" }

// Path reports whether Name is an absolute path.
func (e Endpoint) Path() bool { return strings.HasPrefix(e.Name, "/") }

// Relative reports whether Name is a path relative to the working directory. No
// dataset has a component "." or "..".
func (e Endpoint) Relative() bool {
	first, _, _ := strings.Cut(e.Name, "/")
	return first == "." || first == ".."
}

func (e Endpoint) String() string {
	return e.hostPrefix() + e.Name
}

// hostPrefix returns the text before the name, such as "host:".
func (e Endpoint) hostPrefix() string {
	if e.Local() {
		return ""
	}
	host := e.Host
	if hostOnly := e.HostName(); strings.Contains(hostOnly, ":") {
		host = host[:len(host)-len(hostOnly)] + "[" + hostOnly + "]"
	}
	return host + ":"
}

// HostName returns the host without its user, or "" for the local host.
func (e Endpoint) HostName() string {
	return e.Host[strings.LastIndexByte(e.Host, '@')+1:]
}

// Parse parses an endpoint. Errors are of class fault.Usage.
//
// A colon separates host and name unless a "/" precedes it, because dataset and
// snapshot names may contain colons and host names may not. So "tank/a@12:00" is
// local. "tank@12:00" is local too: no pool name starts with a digit. An IPv6
// address needs brackets.
func Parse(s string) (Endpoint, error) {
	if s == "" {
		return Endpoint{}, fault.Usagef("write [user@]host:NAME or NAME", "empty endpoint")
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return Endpoint{}, fault.Usagef("", "endpoint %q contains a control character or invalid UTF-8", s)
	}
	if strings.HasPrefix(s, "/") {
		return Endpoint{Name: s}, nil
	}
	if suggestion := addressOnly(s); suggestion != "" {
		return Endpoint{}, fault.Usagef("did you mean "+suggestion+"?", "endpoint %q is an address without a dataset", s)
	}
	user, rest := "", s
	if i := strings.IndexAny(s, "@:/"); i >= 0 && s[i] == '@' && strings.Contains(s[i:], ":") {
		user, rest = s[:i+1], s[i+1:]
	}
	if strings.HasPrefix(rest, "[") {
		addr, name, ok := strings.Cut(rest[1:], "]:")
		if !ok {
			return Endpoint{}, fault.Usagef("write [ADDRESS]:NAME", "endpoint %q: no \"]:\" after the address", s)
		}
		if _, err := netip.ParseAddr(addr); err != nil {
			return Endpoint{}, fault.Usagef("", "endpoint %q: %q is not an IP address", s, addr)
		}
		return validate(s, user+addr, name)
	}
	i := strings.IndexAny(rest, ":/")
	if i < 0 || rest[i] == '/' || user != "" && startsWithDigit(rest[i+1:]) {
		return Endpoint{Name: s}, nil
	}
	return validate(s, user+rest[:i], rest[i+1:])
}

// WithoutPool returns the likely endpoint if the name is "user@host", which the notation makes a
// snapshot of a pool, and "" otherwise.
func (e Endpoint) WithoutPool() string {
	user, host, ok := strings.Cut(e.Name, "@")
	if !e.Local() || !ok || user == "" || host == "" || strings.ContainsAny(e.Name, "/#: ") || strings.Contains(host, "@") {
		return ""
	}
	return Endpoint{Host: e.Name, Name: "POOL"}.String()
}

// addressOnly returns the likely endpoint for an IP address without ":NAME", or ""
// for other endpoints. Pool names neither start with a digit nor contain "::".
func addressOnly(s string) string {
	host, name, _ := strings.Cut(s, "/")
	at := host[:strings.LastIndexByte(host, '@')+1]
	address, err := netip.ParseAddr(host[len(at):])
	switch {
	case err != nil, address.Is4() && at != "": // "tank@10.0.0.1" is a snapshot
		return ""
	case name == "":
		name = "POOL"
	}
	return Endpoint{Host: at + address.String(), Name: name}.String()
}

func startsWithDigit(s string) bool { return s != "" && '0' <= s[0] && s[0] <= '9' }

func validate(s, host, name string) (Endpoint, error) {
	hostOnly := host[strings.LastIndexByte(host, '@')+1:]
	switch {
	case strings.HasPrefix(host, "@"):
		return Endpoint{}, fault.Usagef("for the same user, omit the \"@\"", "endpoint %q has no user before the \"@\"", s)
	case strings.Count(host, "@") > 1:
		return Endpoint{}, fault.Usagef("write [user@]host:NAME", "endpoint %q has more than one \"@\" before the colon", s)
	case hostOnly == "":
		return Endpoint{}, fault.Usagef("for this host, omit the colon", "endpoint %q has no host before the colon", s)
	case name == "":
		return Endpoint{}, fault.Usagef("name a pool, dataset or device after the colon", "endpoint %q has no name after the colon", s)
	case strings.HasPrefix(host, "-") || strings.HasPrefix(hostOnly, "-"):
		return Endpoint{}, fault.Usagef("", "endpoint %q: a host name must not start with \"-\"", s)
	case strings.ContainsAny(host, " '\"`$;&|<>\\(){}[]*?!#"):
		return Endpoint{}, fault.Usagef("", "endpoint %q: invalid character in the host name", s)
	}
	e := Endpoint{Host: host, Name: name}
	if e.Relative() {
		return Endpoint{}, fault.Usagef("write the whole path, such as "+e.hostPrefix()+"/srv/disk.img", "endpoint %q: a path on a remote host must start with \"/\"", s)
	}
	return e, nil
}
