package sshexec

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"
)

const (
	maxConfig = 1 << 20                // of each file of ssh's, in bytes
	lookUp    = 500 * time.Millisecond // bounds the resolver
)

// Known tells whether a name is one of Hosts, or one that the resolver knows. No
// host is connected to.
func Known(ctx context.Context, command, name string) bool {
	if slices.Contains(Hosts(command), name) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookUp)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	return err == nil && len(addresses) > 0
}

// Hosts are the names in ssh's configuration, or the one that the remote shell
// names by -F, and those in the files of known hosts that are not hashed: sorted,
// without patterns.
func Hosts(command string) []string {
	home, _ := os.UserHomeDir()
	user, system := filepath.Join(home, ".ssh"), "/etc/ssh"
	c := &config{home: home, seen: map[string]bool{}}
	if file := configOf(command); file != "" {
		c.read(file, user)
	} else {
		c.read(filepath.Join(user, "config"), user)
		c.read(filepath.Join(system, "ssh_config"), system)
	}
	out := slices.Concat(c.hosts, knownIn(filepath.Join(user, "known_hosts")), knownIn(filepath.Join(system, "ssh_known_hosts")))
	out = slices.DeleteFunc(out, func(h string) bool { return strings.ContainsAny(h, "*?!|[]:%") })
	slices.Sort(out)
	return slices.Compact(out)
}

// configOf is the configuration that a remote shell names, "" for none.
func configOf(command string) string {
	words, err := shellquote.Split(command)
	if i := slices.Index(words, "-F"); err == nil && i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// config is what Hosts reads of ssh's configuration.
type config struct {
	home  string
	seen  map[string]bool // files, each of which counts once
	hosts []string        // the names behind Host
}

// read reads a file and those that it includes, which are in dir unless they say
// otherwise.
//
// https://man.openbsd.org/ssh_config
func (c *config) read(file, dir string) {
	if c.seen[file] {
		return
	}
	c.seen[file] = true
	for _, words := range linesOf(file) {
		switch strings.ToLower(words[0]) {
		case "host":
			c.hosts = append(c.hosts, words[1:]...)
		case "include":
			for _, pattern := range words[1:] {
				if strings.HasPrefix(pattern, "~/") {
					pattern = c.home + pattern[1:]
				}
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(dir, pattern)
				}
				files, _ := filepath.Glob(pattern) // what is no pattern matches nothing
				for _, f := range files {
					c.read(f, dir)
				}
			}
		}
	}
}

// knownIn are the names in a file of known hosts, as far as it shows them.
//
// https://man.openbsd.org/sshd#SSH_KNOWN_HOSTS_FILE_FORMAT
func knownIn(file string) (out []string) {
	for _, words := range linesOf(file) {
		if !strings.HasPrefix(words[0], "@") { // a marker, of an authority or a key that was revoked
			out = append(out, strings.Split(words[0], ",")...)
		}
	}
	return out
}

// linesOf are the words of each line of a file that is no comment; none where it
// cannot be read.
func linesOf(file string) (out [][]string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, maxConfig)); lines.Scan(); {
		line := strings.ReplaceAll(lines.Text(), `"`, "")
		if key, value, ok := strings.Cut(line, "="); ok && !strings.ContainsAny(strings.TrimSpace(key), " \t,|") {
			line = key + " " + value // Host=name
		}
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			out = append(out, words)
		}
	}
	return out
}
