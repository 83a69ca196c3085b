package guard

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/freeze"
	"zxfer/pkg/testenv"
)

// server is a database server that runs under its own account.
type server struct {
	t       *testing.T
	dir     string // contains data and socket
	account string
	client  []string // command that executes the statement appended to it
}

// newServer returns a server and the path of its program. It skips the test if PATH lacks the
// program. scripts/databases provides it.
func newServer(t *testing.T, program string) (*server, string) {
	const account = "nobody"
	t.Helper()
	testenv.NeedsRoot(t, "to run a server as "+account)
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("needs %s in PATH, see scripts/databases", program)
	}
	u, err := user.Lookup(account)
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "freeze") // below /tmp, because a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	uid, _ := strconv.Atoi(u.Uid)
	require.NoError(t, os.Chown(dir, uid, -1))
	return &server{t: t, dir: dir, account: account}, path
}

// command returns a command that runs as the server's account.
func (s *server) command(argv ...string) *exec.Cmd {
	cmd := exec.Command("setpriv", append([]string{"--reuid=" + s.account, "--regid=nogroup", "--init-groups"}, argv...)...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "HOME="+s.dir)
	return cmd
}

func (s *server) run(argv ...string) {
	s.t.Helper()
	out, err := s.command(argv...).CombinedOutput()
	require.NoError(s.t, err, "%s", out)
}

func (s *server) start(argv ...string) {
	s.t.Helper()
	cmd := s.command(argv...)
	log, err := os.Create(filepath.Join(s.dir, "server.log"))
	require.NoError(s.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		timer := time.AfterFunc(testenv.Timeout(), func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait()
		_ = log.Close()
	})
	require.Eventually(s.t, func() bool { _, err := s.sql("SELECT 1"); return err == nil }, testenv.Timeout(), 100*time.Millisecond)
}

func (s *server) sql(statement string) (string, error) {
	out, err := s.command(append(s.client, statement)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (s *server) must(statement string) string {
	s.t.Helper()
	out, err := s.sql(statement)
	require.NoError(s.t, err, out)
	return out
}

func postgres(t *testing.T) (*server, freeze.Spec) {
	s, program := newServer(t, "postgres")
	s.client = []string{"psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", s.dir, "-p", "5439", "postgres", "-c"}
	s.run("initdb", "-D", s.dir+"/data", "-A", "trust", "--no-sync")
	s.start(program, "-D", s.dir+"/data", "-k", s.dir, "-p", "5439", "-c", "listen_addresses=", "-c", "log_checkpoints=on")
	return s, freeze.Spec{Kind: freeze.PostgreSQL, Host: s.dir, Port: 5439, RunAs: s.account, Timeout: testenv.Timeout()}
}

// TestPostgreSQL expects that a freeze makes a checkpoint, and parses the server's report.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	s, spec := postgres(t)
	s.must("CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")
	before := s.must("SELECT checkpoint_lsn FROM pg_control_checkpoint()")
	g := begin(t, request(spec))
	require.False(t, g.Stopped, g.Outcomes)
	require.Equal(t, []string{s.dir + "/data", s.dir + "/data/pg_wal"}, g.DataDirs[0])
	require.NotEqual(t, before, s.must("SELECT checkpoint_lsn FROM pg_control_checkpoint()"))
	o := g.Finish()[0]
	require.Empty(t, o.Error)
	require.Regexp(t, `^WAL [0-9A-F]+/[0-9A-F]+$`, o.Position)

	s.must("CREATE ROLE weak LOGIN")
	spec.User = "weak"
	g = begin(t, request(spec))
	require.True(t, g.Stopped)
	require.Contains(t, g.Outcomes[0].Error, "cannot write a checkpoint")
	require.Contains(t, g.Outcomes[0].Hint, "pg_checkpoint")
	g.Cancel()
	spec.Host = s.dir + "/nowhere"
	g = begin(t, request(spec))
	require.Contains(t, g.Outcomes[0].Error, "nowhere")
	g.Cancel()
}

func mariadb(t *testing.T) (*server, freeze.Spec) {
	s, program := newServer(t, "mariadbd")
	socket := s.dir + "/sock"
	s.client = []string{"mariadb", "--no-defaults", "--socket=" + socket, "--user=" + s.account, "--batch", "-N", "-e"}
	s.run("mariadb-install-db", "--no-defaults", "--datadir="+s.dir+"/data", "--auth-root-authentication-method=socket", "--auth-root-socket-user="+s.account, "--skip-test-db")
	s.start(program, "--no-defaults", "--datadir="+s.dir+"/data", "--socket="+socket, "--skip-networking", "--log-bin", "--pid-file="+s.dir+"/pid", "--innodb-flush-log-at-trx-commit=1")
	return s, freeze.Spec{Kind: freeze.MySQL, Socket: socket, User: s.account, RunAs: s.account, Timeout: testenv.Timeout()}
}

// TestMariaDB expects that nothing is committed during the freeze. The lock ends with the message,
// with the watchdog, or at the deadline.
func TestMariaDB(t *testing.T) {
	t.Parallel()
	s, spec := mariadb(t)
	s.must("CREATE DATABASE d; CREATE TABLE d.i (n INT) ENGINE=InnoDB; CREATE TABLE d.m (n INT) ENGINE=MyISAM")
	for name, loosen := range map[string]func(*Guard){
		"message":  func(g *Guard) { require.Empty(t, g.Finish()[0].Error) },
		"drop":     func(g *Guard) { require.Contains(t, g.Cancel()[0].Error, "not taken") },
		"watchdog": func(g *Guard) { g.kill(); require.Contains(t, g.Finish()[0].Error, "watchdog") },
	} {
		before := s.must("SELECT COUNT(*) FROM d.i") + s.must("SELECT COUNT(*) FROM d.m")
		g := begin(t, request(spec))
		require.False(t, g.Stopped, g.Outcomes)
		require.Contains(t, g.DataDirs[0], s.dir+"/data/")
		require.Regexp(t, `^GTID 0-1-\d+$`, g.Outcomes[0].Position)
		written := make(chan error, 2)
		for _, table := range []string{"i", "m"} {
			go func() { _, err := s.sql("INSERT INTO d." + table + " VALUES (1)"); written <- err }()
		}
		select {
		case <-written:
			t.Fatal("a write succeeded during the lock")
		case <-time.After(time.Second):
		}
		require.Equal(t, before, s.must("SELECT COUNT(*) FROM d.i")+s.must("SELECT COUNT(*) FROM d.m"), "reads continue")
		loosen(g)
		for range 2 {
			select {
			case err := <-written:
				require.NoError(t, err, name)
			case <-time.After(testenv.Timeout()):
				t.Fatal(name + ": it is locked for ever")
			}
		}
	}

	// If the session with the lock ends, the freeze is not verified.
	g := begin(t, request(spec))
	var held string
	require.Eventually(t, func() bool { // the server may still list a client that has ended
		var err error
		held, err = s.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE TIME_MS >= 0 AND ID != CONNECTION_ID() AND COMMAND = 'Sleep'")
		return err == nil && held != "" && !strings.Contains(held, "\n")
	}, testenv.Timeout(), 10*time.Millisecond)
	s.must("KILL " + held)
	require.Contains(t, g.Finish()[0].Error, "session ended")

	spec.Timeout = time.Second
	g = begin(t, request(spec))
	s.must("INSERT INTO d.i VALUES (2)") // waits until the lock ends
	require.Contains(t, g.Finish()[0].Error, "timeout of 1s")
	spec.User = "weak"
	g = begin(t, request(spec))
	require.True(t, g.Stopped)
	require.Contains(t, g.Outcomes[0].Error, "Access denied")
	g.Cancel()
}

// TestReadLock expects a lock of all tables on a server without backup stages, such as MySQL and
// older MariaDB. The client in this test reports such a version.
func TestReadLock(t *testing.T) {
	for version, has := range map[string]bool{"10.3.39-MariaDB": false, "10.4.1-MariaDB": true, "10.11.19-MariaDB-0+deb12u1": true, "11.8.2-MariaDB": true, "12.0.1-MariaDB": true} {
		require.Equal(t, has, hasBackupStage.MatchString(version), version)
	}
	s, spec := mariadb(t)
	s.must("CREATE DATABASE d; CREATE TABLE d.i (n INT) ENGINE=InnoDB; SET GLOBAL general_log_file = '" + s.dir + "/general.log'; SET GLOBAL general_log = 1")
	client, err := exec.LookPath("mariadb")
	require.NoError(t, err)
	testenv.WriteProgram(t, s.dir+"/mariadb", "#!/bin/sh\n"+client+` "$@" | sed -u 's/^10\.[0-9.]*-MariaDB.*/10.3.39-MariaDB/'`+"\n")
	t.Setenv("PATH", s.dir+":"+os.Getenv("PATH"))
	s.client[0] = client
	g := begin(t, request(spec))
	require.False(t, g.Stopped, g.Outcomes)
	answer, err := os.ReadFile(s.dir + "/general.log")
	require.NoError(t, err)
	require.Contains(t, string(answer), "FLUSH TABLES WITH READ LOCK")
	written := make(chan error, 1)
	go func() { _, err := s.sql("INSERT INTO d.i VALUES (1)"); written <- err }()
	select {
	case <-written:
		t.Fatal("a write succeeded during the lock")
	case <-time.After(time.Second):
	}
	require.Empty(t, g.Finish()[0].Error)
	select {
	case err := <-written:
		require.NoError(t, err)
	case <-time.After(testenv.Timeout()):
		t.Fatal("the lock never ends")
	}
}
