package sshexec

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// CacheDir is a directory on a host to which zxfer was copied.
type CacheDir struct {
	Dir    string
	Builds int
	Bytes  int64 // disk usage
}

// listEntries is a shell loop over zxfer's entries in the current directory.
const listEntries = `ls | grep -xE "[0-9a-f]{64}|part[.].*" | while read -r d; do `

// endedWord is the last line of a script that completed.
const endedWord = "zxfer-ended"

// inCacheDirs runs the commands do in each existing cache directory of a host.
func inCacheDirs(ctx context.Context, o Options, do string) (lines []string, err error) {
	text, err := Ask(ctx, o, cacheDirs+`inside() { if enter "$c" && ours .; then `+do+`; fi; return 1; }; each inside "$@"; echo `+endedWord)
	lines = strings.Split(strings.TrimSpace(text), "\n")
	if err == nil && lines[len(lines)-1] != endedWord {
		err = errors.New("no shell ran the script")
	}
	if err != nil && o.Host != "" {
		err = fmt.Errorf("%s: %w", o.Host, err)
	}
	return lines, err
}

// ListCache returns the cache directories of this account on a host, or locally if o.Host is "". It
// never asks for a password.
func ListCache(ctx context.Context, o Options) (out []CacheDir, err error) {
	const word = "zxfer-cache "
	lines, err := inCacheDirs(ctx, o, `echo "`+word+`$(pwd -P)"; `+listEntries+`du -sk "./$d"; done`)
	seen := map[string]bool{}
	counts := false
	for _, line := range lines {
		if dir, begins := strings.CutPrefix(line, word); begins {
			if counts = !seen[dir]; counts {
				out, seen[dir] = append(out, CacheDir{Dir: dir}), true
			}
			continue
		}
		size, name, ok := strings.Cut(line, "\t")
		kib, notNumber := strconv.ParseInt(size, 10, 40)
		if !counts || !ok || notNumber != nil || kib < 0 {
			continue
		}
		k := &out[len(out)-1]
		k.Bytes += kib << 10
		if !strings.HasPrefix(name, "./part.") {
			k.Builds++
		}
	}
	return out, err
}

// ClearCache deletes what ListCache lists, and cache directories that are then empty.
func ClearCache(ctx context.Context, o Options) error {
	_, err := inCacheDirs(ctx, o, listEntries+`rm -rf "./$d"; done; cd /; rmdir "$c" 2>/dev/null`)
	return err
}
