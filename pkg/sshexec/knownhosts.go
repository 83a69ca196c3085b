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
	maxConfig     = 1 << 20                // bytes of each ssh file
	lookupTimeout = 500 * time.Millisecond // for the resolver
)

// IsKnownHost reports whether KnownHosts or the resolver knows a name. It does not connect to the
// host.
func IsKnownHost(ctx context.Context, command, name string) bool {
	if slices.Contains(KnownHosts(command), name) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	return err == nil && len(addresses) > 0
}

// KnownHosts returns the sorted host names in ssh's configuration (or in the file that command
// names with -F) and the unhashed ones in the known hosts files. It omits patterns.
func KnownHosts(command string) []string {
	home, _ := os.UserHomeDir()
	user, system := filepath.Join(home, ".ssh"), "/etc/ssh"
	c := &config{home: home, seen: map[string]bool{}}
	if file := configFile(command); file != "" {
		c.read(file, user)
	} else {
		c.read(filepath.Join(user, "config"), user)
		c.read(filepath.Join(system, "ssh_config"), system)
	}
	out := slices.Concat(c.hosts, readKnownHosts(filepath.Join(user, "known_hosts")), readKnownHosts(filepath.Join(system, "ssh_known_hosts")))
	out = slices.DeleteFunc(out, func(h string) bool { return strings.ContainsAny(h, "*?!|[]:%") })
	slices.Sort(out)
	return slices.Compact(out)
}

// configFile returns the configuration file that a remote shell command names with -F, or "".
func configFile(command string) string {
	words, err := shellquote.Split(command)
	if i := slices.Index(words, "-F"); err == nil && i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// config collects host names from ssh's configuration.
type config struct {
	home  string
	seen  map[string]bool // files already read
	hosts []string        // arguments of Host
}

// read reads a configuration file and those that it includes. Relative includes are in dir.
//
// https://man.openbsd.org/ssh_config
func (c *config) read(file, dir string) {
	if c.seen[file] {
		return
	}
	c.seen[file] = true
	for _, words := range readLines(file) {
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
				files, _ := filepath.Glob(pattern) // an invalid pattern matches nothing
				for _, f := range files {
					c.read(f, dir)
				}
			}
		}
	}
}

// readKnownHosts returns the unhashed names in a known hosts file.
//
// https://man.openbsd.org/sshd#SSH_KNOWN_HOSTS_FILE_FORMAT
func readKnownHosts(file string) (out []string) {
	for _, words := range readLines(file) {
		if !strings.HasPrefix(words[0], "@") { // markers are @cert-authority and @revoked
			out = append(out, strings.Split(words[0], ",")...)
		}
	}
	return out
}

// readLines returns the words of each line of a file, without comments. It returns nil if the file
// cannot be read.
func readLines(file string) (out [][]string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, maxConfig)); lines.Scan(); {
		line := strings.ReplaceAll(lines.Text(), `"`, "")
		if key, value, ok := strings.Cut(line, "="); ok && !strings.ContainsAny(strings.TrimSpace(key), " \t,|") {
			line = key + " " + value
		}
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			out = append(out, words)
		}
	}
	return out
}
