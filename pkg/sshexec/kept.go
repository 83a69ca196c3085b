package sshexec

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Kept is a directory where a host keeps zxfers.
type Kept struct {
	Dir    string
	Builds int
	Bytes  int64 // on disk
}

// keptThere is what zxfer makes in such a directory, in a shell that is in it.
const keptThere = `ls | grep -xE "[0-9a-f]{64}|part[.].*" | while read -r d; do `

// endedWord is the last line of a script that ran to its end.
const endedWord = "zxfer-ended"

// atPlaces does something in each of a host's directories that hold zxfers.
func atPlaces(ctx context.Context, o Options, do string) (lines []string, err error) {
	text, err := Ask(ctx, o, places+each+`if enter "$c" && ours .; then `+do+`; fi; done; echo `+endedWord)
	lines = strings.Split(strings.TrimSpace(text), "\n")
	if err == nil && lines[len(lines)-1] != endedWord {
		err = errors.New("no shell ran what it was sent")
	}
	if err != nil && o.Host != "" {
		err = fmt.Errorf("%s: %w", o.Host, err)
	}
	return lines, err
}

// Keeps tells where a host, or where o names none this one, keeps zxfers for this
// account. Nobody is asked for a password.
func Keeps(ctx context.Context, o Options) (out []Kept, err error) {
	const word = "zxfer-cache "
	lines, err := atPlaces(ctx, o, `echo "`+word+`$(pwd -P)"; `+keptThere+`du -sk "./$d"; done`)
	seen := map[string]bool{}
	counts := false
	for _, line := range lines {
		if dir, begins := strings.CutPrefix(line, word); begins {
			if counts = !seen[dir]; counts {
				out, seen[dir] = append(out, Kept{Dir: dir}), true
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

// RemoveKept removes what Keeps tells of, and the directories where nothing else is.
func RemoveKept(ctx context.Context, o Options) error {
	_, err := atPlaces(ctx, o, keptThere+`rm -rf "./$d"; done; cd /; rmdir "$c" 2>/dev/null`)
	return err
}
