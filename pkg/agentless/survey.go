package agentless

import (
	"strconv"
	"strings"

	"zxfer/pkg/hosts"
	"zxfer/pkg/sysinfo"
)

// backend names the back end of every Host.
const backend = "zfs command line through the remote shell"

// surveyScript prints a host's facts: lines "WORD VALUE", and after each line "help NAME" the
// help text of the nc of that name.
const surveyScript = `exec </dev/null
v="$(cat /sys/module/zfs/version 2>/dev/null)" || v="$(zfs version 2>/dev/null | sed -n "s/^zfs-kmod-//p")"
cat <<END
hostname $(uname -n)
kernel $(uname -r)
user $(id -un)
groups $(id -Gn)
uid $(id -u)
boot $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
connection $SSH_CONNECTION
cpus $(getconf _NPROCESSORS_ONLN 2>/dev/null)
zfs $v
tool $(command -v zfs)
mbuffer $(command -v mbuffer)
END
for c in nc ncat netcat; do ! command -v $c >/dev/null || { echo "help $c"; $c -h 2>&1; }; done
exit 0`

func parseSurvey(text string) (f hosts.Facts, t tools) {
	text, helps, _ := strings.Cut(text, "\nhelp ")
	for section := range strings.SplitSeq(helps, "\nhelp ") {
		name, help, _ := strings.Cut(section, "\n")
		if dialect := sysinfo.NCDialect(help); t.nc == "" || t.dialect == sysinfo.UnknownNC && dialect != sysinfo.UnknownNC {
			t.nc, t.dialect = name, dialect
		}
	}
	for line := range strings.Lines(text) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "hostname":
			f.Hostname = value
		case "kernel":
			f.Kernel = value
		case "user":
			f.User = value
		case "groups":
			t.groups = strings.Fields(value)
		case "uid":
			f.Root = value == "0"
		case "boot":
			f.Boot = value
		case "connection":
			if c := strings.Fields(value); len(c) == 4 {
				f.SSHPeer, f.SSHLocal = c[0], c[2]
			}
		case "cpus":
			n, _ := strconv.Atoi(value) // 0 = unknown
			f.CPUs = max(0, n)
		case "zfs":
			f.ZFS = value
		case "tool":
			t.zfs = value != ""
		case "mbuffer":
			t.mbuffer = value != ""
		}
	}
	f.Backend = backend
	return f, t
}

// tools are the programs on the host that streams need, and the groups of the account.
type tools struct {
	groups  []string // of the account
	zfs     bool
	zpool   bool // known only for an account without a shell
	mbuffer bool
	nc      string // command name, "" if missing
	dialect string
}
