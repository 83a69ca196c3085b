package agentless

// Command is a command that zxfer runs on a host without zxfer.
type Command struct {
	Words string // the program and its first argument
	Use   string // what it is for
}

// Commands returns the commands that an account must permit. An account with a POSIX shell also runs
// scripts.
func Commands() []Command {
	return []Command{
		{"zfs version", "always"},
		{"zfs list", "always"},
		{"zfs get", "always"},
		{"zfs holds", "always"},
		{"zpool version", "optional: features and free space of the pool"},
		{"zpool get", "optional: features and free space of the pool"},
		{"zpool sync", "optional: changes of the last seconds"},
		{"zpool status", "heal from a copy on that host"},
		{"zfs send", "send from that host, verify contents, drill"},
		{"zfs receive", "send to that host"},
		{"zfs create", "send to that host if the target's parent is missing"},
		{"zfs snapshot", "take snapshots"},
		{"zfs hold", "place holds"},
		{"zfs release", "release holds"},
		{"zfs bookmark", "create bookmarks"},
		{"zfs destroy", "destroy snapshots, bookmarks and clones of drills: retention, rollback, drill"},
		{"zfs set", "restore to that host, fail over; acltype and restrictions of existing copies"},
		{"zfs inherit", "restore to that host, fail over"},
		{"zfs rollback", "restore with rollback; heal from a copy on that host"},
		{"zfs unmount", "restore over a mounted dataset, fail over"},
		{"zfs rename", "rename diverged copies"},
		{"zfs clone", "drill"},
	}
}
