/*
 * init.c - process 1 of the guest of scripts/guest.
 *
 * The runner prepares one directory per run on the host. It is the guest's
 * first root (hostfs) and all there is between the two sides:
 *
 *   conf        lines "key value", see read_conf()
 *   argv env    the command and its environment, each string ended by a NUL
 *   shares      lines "d TARGET<TAB>SOURCE" (a directory) or "f ..." (one file)
 *   m/          an empty directory to mount things on
 *   stdout stderr   what the command writes, appended as it comes
 *   up          made when the command is about to start
 *   status      the exit status, written last; without it the guest failed
 *
 * Written in C and linked statically: it has to run before there is a root
 * file system, adds nothing to the time a guest takes to start, and passes
 * arguments and output through byte for byte.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

static int run_fd = -1; /* the run directory on the host, open for good */

static void power_off(void)
{
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

/* Says what is wrong on the kernel console, which the runner shows. */
static void say(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "guest-init: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	fflush(stderr);
}

static void die(const char *what, const char *arg)
{
	say("%s %s: %s", what, arg, strerror(errno));
	power_off();
}

/* Reads a whole file of the run directory; the result ends with a NUL more. */
static char *slurp(const char *name, size_t *len)
{
	size_t cap = 1 << 16, n = 0;
	char *buf = malloc(cap + 1);
	ssize_t r;
	int fd = openat(run_fd, name, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("open", name);
	while ((r = read(fd, buf + n, cap - n)) > 0) {
		n += r;
		if (n == cap)
			buf = realloc(buf, (cap *= 2) + 1);
	}
	if (r < 0)
		die("read", name);
	close(fd);
	buf[n] = 0;
	if (len)
		*len = n;
	return buf;
}

/* Makes a NULL-ended vector of the NUL-ended strings of a file. */
static char **slurp_vec(const char *name)
{
	size_t len, i, n = 0;
	char *buf = slurp(name, &len);
	char **v;

	for (i = 0; i < len; i++)
		n += buf[i] == 0;
	v = calloc(n + 1, sizeof(*v));
	for (i = 0; i < n; i++) {
		v[i] = buf;
		buf += strlen(buf) + 1;
	}
	return v;
}

static struct {
	char *root, *modules, *cwd;
	char *zfs; /* parameters of the zfs module */
	int tty, rows, cols;
} conf;

static void read_conf(void)
{
	char *save = NULL, *p = slurp("conf", NULL), *line, *val;

	for (line = strtok_r(p, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (!(val = strchr(line, ' ')))
			continue;
		*val++ = 0;
		if (!strcmp(line, "root"))
			conf.root = val;
		else if (!strcmp(line, "modules"))
			conf.modules = val;
		else if (!strcmp(line, "cwd"))
			conf.cwd = val;
		else if (!strcmp(line, "zfs"))
			conf.zfs = val;
		else if (!strcmp(line, "tty"))
			conf.tty = atoi(val);
		else if (!strcmp(line, "rows"))
			conf.rows = atoi(val);
		else if (!strcmp(line, "cols"))
			conf.cols = atoi(val);
	}
}

static void mkdir_p(const char *path)
{
	char tmp[PATH_MAX], *p;

	snprintf(tmp, sizeof(tmp), "%s", path);
	for (p = tmp + 1; *p; p++)
		if (*p == '/') {
			*p = 0;
			mkdir(tmp, 0755);
			*p = '/';
		}
	mkdir(tmp, 0755);
}

static void mnt(const char *type, const char *target, unsigned long flags,
		const char *data)
{
	mkdir_p(target);
	if (mount(type, target, type, flags, data))
		die("mount", target);
}

/* As mnt, for what a kernel may have been built without. */
static void mnt_maybe(const char *type, const char *target, const char *data)
{
	mkdir_p(target);
	if (mount(type, target, type, MS_NOSUID | MS_NODEV | MS_NOEXEC, data) &&
	    errno != ENODEV && errno != ENOENT && errno != EPERM)
		say("mount %s: %s", target, strerror(errno));
}

/* The root directory below a writable layer in memory, and / made of it. */
static void enter_root(void)
{
	mnt("tmpfs", "/m", 0, "mode=755");
	mkdir("/m/up", 0755);
	mkdir("/m/work", 0755);
	mnt("hostfs", "/m/low", MS_RDONLY, conf.root);
	mnt("overlay", "/m/root", 0,
	    "lowerdir=/m/low,upperdir=/m/up,workdir=/m/work");
	if (chdir("/m/root") || syscall(SYS_pivot_root, ".", ".") ||
	    umount2(".", MNT_DETACH) || chdir("/"))
		die("pivot_root", conf.root);
}

static void system_mounts(void)
{
	mnt("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mnt("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mnt("devtmpfs", "/dev", MS_NOSUID, "mode=755");
	mnt("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC,
	    "mode=620,gid=5,ptmxmode=666");
	mnt("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
	mnt("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=755");
	mnt("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, "mode=1777");
	mnt_maybe("cgroup2", "/sys/fs/cgroup", NULL);
	mnt_maybe("debugfs", "/sys/kernel/debug", NULL);
	mnt_maybe("fusectl", "/sys/fs/fuse/connections", NULL);
	mkdir("/run/lock", 01777);
	mkdir("/run/sshd", 0755);
	mkdir("/run/netns", 0755);
	symlink("/proc/self/fd", "/dev/fd");
	symlink("/proc/self/fd/0", "/dev/stdin");
	symlink("/proc/self/fd/1", "/dev/stdout");
	symlink("/proc/self/fd/2", "/dev/stderr");
}

/* Mounts one host file: its directory aside, then the file alone from there. */
static void share_file(const char *target, const char *source)
{
	static int n;
	char dir[PATH_MAX], aside[64], from[PATH_MAX + 128], *base;
	int fd;

	snprintf(dir, sizeof(dir), "%s", source);
	base = strrchr(dir, '/');
	*base++ = 0;
	snprintf(aside, sizeof(aside), "/run/.guest-file%d", n++);
	mnt("hostfs", aside, 0, *dir ? dir : "/");
	snprintf(from, sizeof(from), "%s/%s", aside, base);
	snprintf(dir, sizeof(dir), "%s", target);
	*strrchr(dir, '/') = 0;
	if (*dir)
		mkdir_p(dir);
	if ((fd = open(target, O_CREAT | O_WRONLY | O_CLOEXEC, 0755)) >= 0)
		close(fd);
	if (mount(from, target, NULL, MS_BIND, NULL))
		die("bind mount", target);
	umount2(aside, MNT_DETACH);
}

static int share_fds[256], n_share_fds;

static void mount_shares(void)
{
	char *save = NULL, *p = slurp("shares", NULL), *line, *source;

	for (line = strtok_r(p, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (strlen(line) < 3 || !(source = strchr(line, '\t')))
			continue;
		*source++ = 0;
		if (line[0] == 'f') {
			share_file(line + 2, source);
		} else {
			int fd;

			mnt("hostfs", line + 2, 0, source);
			fd = open(line + 2, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			if (fd >= 0 && n_share_fds < 256)
				share_fds[n_share_fds++] = fd;
		}
	}
}

static void insmod(const char *dir, const char *name, const char *params)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/extra/%s", dir, name);
	if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
		if (errno == ENOENT)
			return; /* a guest without ZFS is of use while building it */
		die("open", path);
	}
	if (syscall(SYS_finit_module, fd, params, 0) && errno != EEXIST)
		die("load", path);
	close(fd);
}

static void load_modules(void)
{
	struct utsname u;
	char dir[PATH_MAX];
	/* 2.1 and older split the module; dependencies come first. */
	static const char *const old[] = { "zavl.ko", "znvpair.ko",
		"zunicode.ko", "icp.ko", "zcommon.ko", "zlua.ko", "zzstd.ko",
		NULL };
	int i;

	if (!conf.modules)
		return;
	uname(&u);
	/* Where modprobe and modinfo look. */
	snprintf(dir, sizeof(dir), "/lib/modules/%s", u.release);
	mnt("hostfs", dir, MS_RDONLY, conf.modules);
	insmod(dir, "spl.ko", "");
	for (i = 0; old[i]; i++)
		insmod(dir, old[i], "");
	insmod(dir, "zfs.ko", conf.zfs ? conf.zfs : "");
}

static void loopback_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	ifr.ifr_flags = IFF_UP | IFF_RUNNING;
	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &ifr))
		say("lo: %s", strerror(errno));
	close(fd);
}

static void sysctl(const char *path, const char *val)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (write(fd, val, strlen(val)) < 0)
		say("%s: %s", path, strerror(errno));
	close(fd);
}

static void limits(void)
{
	struct rlimit files = { 1024, 1048576 }; /* as on a Debian host */
	struct rlimit core = { 0, RLIM_INFINITY };
	struct rlimit lock = { RLIM_INFINITY, RLIM_INFINITY };

	setrlimit(RLIMIT_NOFILE, &files);
	setrlimit(RLIMIT_CORE, &core);
	setrlimit(RLIMIT_MEMLOCK, &lock);
}

static int open_out(const char *name)
{
	int fd = openat(run_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
			0644);

	if (fd < 0)
		die("open", name);
	return fd;
}

static const char *path_of(char **env)
{
	for (; *env; env++)
		if (!strncmp(*env, "PATH=", 5))
			return *env + 5;
	return "/usr/sbin:/usr/bin:/sbin:/bin";
}

/* The child's side: never returns. */
static void exec_command(char **argv, char **env, int in, int out, int err)
{
	sigset_t none;
	int e;

	setsid();
	dup2(in, 0);
	dup2(out, 1);
	dup2(err, 2);
	if (conf.tty) {
		struct winsize w = { .ws_row = conf.rows, .ws_col = conf.cols };

		ioctl(0, TIOCSCTTY, 1);
		if (conf.rows > 0 && conf.cols > 0)
			ioctl(0, TIOCSWINSZ, &w);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	if (chdir(conf.cwd ? conf.cwd : "/")) {
		dprintf(2, "guest: cannot enter %s: %s\n", conf.cwd,
			strerror(errno));
		_exit(125);
	}
	setenv("PATH", path_of(env), 1); /* execvpe searches init's own PATH */
	execvpe(argv[0], argv, env);
	e = errno;
	dprintf(2, "guest: %s: %s\n", argv[0], strerror(e));
	_exit(e == ENOENT || e == ENOTDIR ? 127 : 126);
}

struct stream {
	int in, out;
};

static char buf[1 << 20];

/* Moves what is there; closes the stream at its end. Returns bytes moved. */
static ssize_t pump(struct stream *s)
{
	ssize_t n = read(s->in, buf, sizeof(buf)), off = 0, w;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		close(s->in);
		s->in = -1;
		return 0;
	}
	while (off < n) {
		w = write(s->out, buf + off, n - off);
		if (w < 0) {
			/* /dev/shm of the host is full: nothing can be saved. */
			die("write", "output of the command");
		}
		off += w;
	}
	return n;
}

/*
 * Relays until the command ends. Whatever it left running is killed then, as
 * with a container, so that the pipes end; a process that cannot be killed (it
 * waits for a suspended pool) is not waited for.
 */
static int relay(pid_t child, struct stream *s, int n)
{
	struct pollfd p[3];
	struct signalfd_siginfo si;
	sigset_t chld;
	int status = 0, done = 0, i, st, sfd;
	pid_t pid;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sfd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	for (;;) {
		int open_streams = 0, ready;

		for (i = 0; i < n; i++) {
			p[i].fd = s[i].in;
			p[i].events = POLLIN;
			open_streams += s[i].in >= 0;
		}
		p[n].fd = sfd;
		p[n].events = POLLIN;
		if (done && !open_streams)
			return status;
		ready = poll(p, n + 1, done ? 1000 : -1);
		if (ready == 0 && done)
			return status;
		for (i = 0; i < n; i++)
			if (s[i].in >= 0 && p[i].revents)
				pump(&s[i]);
		if (!(p[n].revents & POLLIN))
			continue;
		while (read(sfd, &si, sizeof(si)) > 0)
			;
		while ((pid = waitpid(-1, &st, WNOHANG)) > 0)
			if (pid == child) {
				done = 1;
				status = WIFEXITED(st) ? WEXITSTATUS(st) :
							 128 + WTERMSIG(st);
				kill(-1, SIGKILL);
			}
	}
}

int main(void)
{
	char **argv, **env, msg[32];
	struct stream s[2];
	int in, out[2], err[2], fd, n = 0, status, i;
	sigset_t chld;
	pid_t child;

	run_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (run_fd < 0)
		die("open", "/");
	umask(022);
	read_conf();
	argv = slurp_vec("argv");
	env = slurp_vec("env");
	if (!conf.root || !argv[0]) {
		errno = EINVAL;
		die("conf", "root or argv");
	}
	s[0].out = open_out("stdout");
	s[1].out = open_out("stderr");
	enter_root();
	system_mounts();
	limits();
	sethostname("guest", 5);
	loopback_up();
	sysctl("/proc/sys/kernel/panic_on_oops", "1");
	/* UML handles a page fault in some 30 us. A fault of a program then maps
	 * up to 1 MiB around it: zfs starts in 33 ms instead of 44. */
	sysctl("/sys/kernel/debug/fault_around_bytes", "1048576");
	load_modules();
	mount_shares();
	/* All that the kernel says from now on is worth a line of the console. */
	sysctl("/proc/sys/kernel/printk", "8");

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (conf.tty) {
		in = open("/dev/tty1", O_RDWR | O_CLOEXEC | O_NOCTTY);
		if (in < 0)
			die("open", "/dev/tty1");
		out[1] = err[1] = in;
	} else {
		in = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
			die("make", "pipe");
		fcntl(out[1], F_SETPIPE_SZ, (int)sizeof(buf));
		s[0].in = out[0];
		s[1].in = err[0];
		n = 2;
	}
	fd = openat(run_fd, "up", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd >= 0)
		close(fd);
	child = fork();
	if (child == 0)
		exec_command(argv, env, in, out[1], err[1]);
	if (child < 0)
		die("fork", argv[0]);
	close(in);
	if (n) {
		close(out[1]);
		close(err[1]);
	}
	status = relay(child, s, n);

	/*
	 * Only the shares: sync() would wait for pools, and a pool may be
	 * suspended for ever.
	 */
	for (i = 0; i < n_share_fds; i++)
		syncfs(share_fds[i]);
	fd = openat(run_fd, "status.tmp",
		    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	snprintf(msg, sizeof(msg), "%d\n", status);
	if (fd < 0 || write(fd, msg, strlen(msg)) < 0 || close(fd) ||
	    renameat(run_fd, "status.tmp", run_fd, "status"))
		die("write", "status");
	power_off();
}
