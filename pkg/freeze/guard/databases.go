package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/zfs/cli"
)

// mysql is a MySQL or MariaDB server, locked by one session of its client. The end of that session
// thaws it.
//
// MariaDB 10.4 and later has backup stages, which wait for no reader and let transactions continue
// until they commit. Otherwise all tables are flushed and locked.
//
// https://mariadb.com/kb/en/backup-stage/ (storage snapshots)
// https://dev.mysql.com/doc/refman/8.4/en/flush.html (FLUSH TABLES WITH READ LOCK)
type mysql struct {
	spec *freeze.Spec

	cmd        *exec.Cmd
	wait       func()
	stdin      io.WriteCloser
	lines      chan string // closed at the end of the output
	said       *cli.Tail
	connection string // connection ID
	unlock     string
}

// hasBackupStage matches versions of MariaDB that have BACKUP STAGE.
var hasBackupStage = regexp.MustCompile(`^(10\.([4-9]|\d\d)|1[1-9]|[2-9]\d)\.`)

func (m *mysql) freeze(ctx context.Context) (f frozen, err error) {
	if err := m.open(ctx); err != nil {
		return f, err
	}
	// If this host is lost, the server ends the session and releases the lock.
	seconds := strconv.Itoa(int(m.spec.Timeout.Seconds()) + 1)
	head, err := m.ask(ctx, "SET SESSION lock_wait_timeout = "+seconds+", SESSION wait_timeout = "+seconds,
		"SELECT VERSION()", "SELECT CONNECTION_ID()")
	if err == nil && len(head) != 2 {
		err = fmt.Errorf("the client printed %q", head)
	}
	if err != nil {
		return f, err
	}
	version, isMariaDB := head[0], strings.Contains(head[0], "MariaDB")
	lock, position := []string{"FLUSH TABLES WITH READ LOCK"}, "REPLACE(@@GLOBAL.gtid_executed, CHAR(10), '')" // on one line
	if m.connection, m.unlock = head[1], "UNLOCK TABLES"; isMariaDB {
		position = "@@GLOBAL.gtid_binlog_pos"
	}
	if isMariaDB && hasBackupStage.MatchString(version) {
		lock, m.unlock = []string{"BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT"}, "BACKUP STAGE END"
	}
	if _, err := m.ask(ctx, lock...); err != nil {
		return f, fault.Failf("grant the account the privilege RELOAD; SHOW PROCESSLIST shows sessions that block the lock", "cannot lock the tables: %w", err)
	}
	answer, err := m.ask(ctx, "SELECT "+position,
		"SELECT @@datadir UNION ALL SELECT @@innodb_data_home_dir UNION ALL SELECT @@innodb_log_group_home_dir UNION ALL SELECT @@innodb_undo_directory")
	if err != nil || len(answer) < 2 {
		return f, errors.Join(err, fmt.Errorf("cannot find its data directory: %q", answer))
	}
	if answer[0] != "" && answer[0] != "NULL" {
		f.Position = "GTID " + answer[0]
	}
	for _, dir := range answer[1:] {
		switch {
		case dir == "" || dir == "NULL":
		case path.IsAbs(dir):
			f.DataDirs = append(f.DataDirs, dir)
		default:
			f.DataDirs = append(f.DataDirs, path.Join(answer[1], dir))
		}
	}
	return f, nil
}

// open starts the client, which reads statements and does not reconnect.
func (m *mysql) open(ctx context.Context) error {
	client, err := exec.LookPath("mariadb")
	if err != nil {
		client, err = exec.LookPath("mysql")
	}
	if err != nil {
		return fault.Failf("apt install mariadb-client", "found neither mariadb nor mysql: %w", err)
	}
	argv := []string{client}
	if m.spec.Credentials != "" { // must come first
		argv = append(argv, "--defaults-extra-file="+m.spec.Credentials)
	}
	argv = append(argv, "--batch", "--skip-column-names", "--raw", "--unbuffered", "--skip-reconnect",
		"--connect-timeout="+strconv.Itoa(max(1, int(m.spec.Timeout.Seconds()))))
	for _, o := range []struct{ name, value string }{{"host", m.spec.Host}, {"socket", m.spec.Socket}, {"user", m.spec.User}} {
		if o.value != "" {
			argv = append(argv, "--"+o.name+"="+o.value)
		}
	}
	if m.spec.Port != 0 {
		argv = append(argv, "--port="+strconv.Itoa(m.spec.Port))
	}
	// The client ends at end of input, when this process dies: only it has the write end.
	stdin, in, err := os.Pipe()
	if err != nil {
		return err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	m.stdin, m.said, m.lines = in, &cli.Tail{}, make(chan string)
	m.cmd, err = start(ctx, m.spec, argv, nil, stdin, stdout, m.said)
	_, _ = stdin.Close(), stdout.Close()
	if err != nil {
		return err
	}
	m.wait = sync.OnceFunc(func() { _ = m.cmd.Wait() }) // prove reports the state of the session
	go scan(out, m.lines)
	return nil
}

// ask runs statements and returns the lines of their results.
func (m *mysql) ask(ctx context.Context, statements ...string) (answer []string, err error) {
	const end = "zxfer: done"
	_, err = io.WriteString(m.stdin, strings.Join(statements, ";\n")+";\nSELECT '"+end+"';\n")
	for err == nil {
		select {
		case line, ok := <-m.lines:
			switch {
			case !ok:
				m.wait()
				return nil, withOutput(m.cmd.Args[0], errors.New("the session ended"), m.said.String())
			case line == end:
				return answer, nil
			case len(answer) < 64:
				answer = append(answer, line)
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return nil, withOutput(m.cmd.Args[0], err, m.said.String())
}

func (m *mysql) prove(ctx context.Context) error {
	now, err := m.ask(ctx, "SELECT CONNECTION_ID()")
	if err == nil && (len(now) != 1 || now[0] != m.connection) {
		err = errors.New("the session that held the lock has ended")
	}
	return err
}

// thaw ends the session and, if the client does not respond, kills it.
func (m *mysql) thaw(context.Context) error {
	if m.cmd == nil {
		return nil
	}
	if m.unlock != "" {
		_, _ = io.WriteString(m.stdin, m.unlock+";\n") // the end of the session unlocks too
	}
	_ = m.stdin.Close()
	timer := time.AfterFunc(waitDelay, func() { _ = m.cmd.Process.Kill() })
	defer timer.Stop()
	m.wait()
	return nil
}

// scan sends lines until the end of the output.
func scan(r io.Reader, lines chan<- string) {
	defer close(lines)
	s := bufio.NewScanner(r)
	for s.Scan() {
		lines <- s.Text()
	}
}

// postgresql is a PostgreSQL server. It recovers from a snapshot of all its files in one
// transaction as after a power failure, and a checkpoint just before shortens the recovery. Backup
// mode serves copies made file by file or from several pools. Here it would only add a
// backup_label, which recovery does not need.
//
// https://www.postgresql.org/docs/current/backup-file.html
type postgresql struct{ *freeze.Spec }

func (p *postgresql) freeze(ctx context.Context) (f frozen, err error) {
	env := []string{"PGCONNECT_TIMEOUT=" + strconv.Itoa(max(2, int(p.Timeout.Seconds()))), "PGAPPNAME=zxfer"}
	for name, value := range map[string]string{"PGHOST": p.Host, "PGUSER": p.User, "PGPASSFILE": p.Credentials} {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	if p.Port != 0 {
		env = append(env, "PGPORT="+strconv.Itoa(p.Port))
	}
	database := p.Database
	if database == "" {
		database = "postgres"
	}
	env = append(env, "PGDATABASE="+database)
	output, err := run(ctx, p.Spec, []string{"psql", "-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1",
		"-c", "CHECKPOINT",
		"-c", "SELECT 'at ' || CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END",
		// The result omits settings that the account may not see.
		"-c", "SELECT 'in ' || setting FROM pg_settings WHERE name = 'data_directory' UNION ALL SELECT 'in ' || pg_tablespace_location(oid) FROM pg_tablespace",
	}, env)
	if err != nil {
		return f, fault.Failf("grant the account the role pg_checkpoint (superuser before PostgreSQL 15)\nfor peer authentication, set run_as", "cannot write a checkpoint: %w", err)
	}
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		if at, ok := strings.CutPrefix(line, "at "); ok {
			f.Position = "WAL " + at
		}
		if in, ok := strings.CutPrefix(line, "in /"); ok {
			f.DataDirs = append(f.DataDirs, "/"+in)
			f.DataDirs = append(f.DataDirs, "/"+in+"/pg_wal")
		}
	}
	return f, nil
}

func (p *postgresql) prove(context.Context) error { return nil } // the snapshot is one transaction

func (p *postgresql) thaw(context.Context) error { return nil }
