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

// mysql is a server of MySQL or MariaDB, which one session of its own client locks. It
// goes on when that session ends, however that does.
//
// MariaDB from 10.4 on has stages of a backup, which wait for no reader and let
// transactions go on until they commit; else all tables are flushed and locked.
//
// https://mariadb.com/kb/en/backup-stage/ (storage snapshots)
// https://dev.mysql.com/doc/refman/8.4/en/flush.html (FLUSH TABLES WITH READ LOCK)
type mysql struct {
	spec *freeze.Spec

	cmd        *exec.Cmd
	wait       func()
	stdin      io.WriteCloser
	lines      chan string // closed at the end of its output
	said       *cli.Tail
	connection string // its number
	unlock     string
}

// staged is a version of MariaDB that has BACKUP STAGE.
var staged = regexp.MustCompile(`^(10\.([4-9]|\d\d)|1[1-9]|[2-9]\d)\.`)

func (m *mysql) freeze(ctx context.Context) (f frozen, err error) {
	if err := m.open(ctx); err != nil {
		return f, err
	}
	// Where this host is lost, the server ends the session, and with it the lock.
	seconds := strconv.Itoa(int(m.spec.Within.Seconds()) + 1)
	head, err := m.ask(ctx, "SET SESSION lock_wait_timeout = "+seconds+", SESSION wait_timeout = "+seconds,
		"SELECT VERSION()", "SELECT CONNECTION_ID()")
	if err == nil && len(head) != 2 {
		err = fmt.Errorf("the client told %q", head)
	}
	if err != nil {
		return f, err
	}
	version, isMariaDB := head[0], strings.Contains(head[0], "MariaDB")
	lock, position := []string{"FLUSH TABLES WITH READ LOCK"}, "REPLACE(@@GLOBAL.gtid_executed, CHAR(10), '')" // on one line
	if m.connection, m.unlock = head[1], "UNLOCK TABLES"; isMariaDB {
		position = "@@GLOBAL.gtid_binlog_pos"
	}
	if isMariaDB && staged.MatchString(version) {
		lock, m.unlock = []string{"BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT"}, "BACKUP STAGE END"
	}
	if _, err := m.ask(ctx, lock...); err != nil {
		return f, fault.Failf("the account needs the privilege RELOAD, and what holds the lock up is in SHOW PROCESSLIST", "no lock: %w", err)
	}
	told, err := m.ask(ctx, "SELECT "+position,
		"SELECT @@datadir UNION ALL SELECT @@innodb_data_home_dir UNION ALL SELECT @@innodb_log_group_home_dir UNION ALL SELECT @@innodb_undo_directory")
	if err != nil || len(told) < 2 {
		return f, errors.Join(err, fmt.Errorf("where it has its data it does not tell: %q", told))
	}
	if told[0] != "" && told[0] != "NULL" {
		f.Position = "GTID " + told[0]
	}
	for _, dir := range told[1:] {
		switch {
		case dir == "" || dir == "NULL":
		case path.IsAbs(dir):
			f.Places = append(f.Places, dir)
		default:
			f.Places = append(f.Places, path.Join(told[1], dir))
		}
	}
	return f, nil
}

// open starts the client, which reads statements and never connects twice.
func (m *mysql) open(ctx context.Context) error {
	client, err := exec.LookPath("mariadb")
	if err != nil {
		client, err = exec.LookPath("mysql")
	}
	if err != nil {
		return fault.Failf("install the package mariadb-client or default-mysql-client", "neither mariadb nor mysql was found: %w", err)
	}
	argv := []string{client}
	if m.spec.Credentials != "" { // has to come first
		argv = append(argv, "--defaults-extra-file="+m.spec.Credentials)
	}
	argv = append(argv, "--batch", "--skip-column-names", "--raw", "--unbuffered", "--skip-reconnect",
		"--connect-timeout="+strconv.Itoa(max(1, int(m.spec.Within.Seconds()))))
	for _, o := range []struct{ name, value string }{{"host", m.spec.Host}, {"socket", m.spec.Socket}, {"user", m.spec.User}} {
		if o.value != "" {
			argv = append(argv, "--"+o.name+"="+o.value)
		}
	}
	if m.spec.Port != 0 {
		argv = append(argv, "--port="+strconv.Itoa(m.spec.Port))
	}
	// The client ends with its input, and that with this process: it has the only other end.
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
	m.wait = sync.OnceFunc(func() { _ = m.cmd.Wait() }) // what became of the session prove tells
	go scan(out, m.lines)
	return nil
}

// ask has the client carry out statements, and returns the lines of their answers.
func (m *mysql) ask(ctx context.Context, statements ...string) (answer []string, err error) {
	const end = "zxfer: done"
	_, err = io.WriteString(m.stdin, strings.Join(statements, ";\n")+";\nSELECT '"+end+"';\n")
	for err == nil {
		select {
		case line, ok := <-m.lines:
			switch {
			case !ok:
				m.wait()
				return nil, failure(m.cmd.Args[0], errors.New("the session ended"), m.said.String())
			case line == end:
				return answer, nil
			case len(answer) < 64:
				answer = append(answer, line)
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return nil, failure(m.cmd.Args[0], err, m.said.String())
}

func (m *mysql) prove(ctx context.Context) error {
	now, err := m.ask(ctx, "SELECT CONNECTION_ID()")
	if err == nil && (len(now) != 1 || now[0] != m.connection) {
		err = errors.New("the session that held the lock is not there any more")
	}
	return err
}

// thaw ends the session, by a signal where it does not listen.
func (m *mysql) thaw(context.Context) error {
	if m.cmd == nil {
		return nil
	}
	if m.unlock != "" {
		_, _ = io.WriteString(m.stdin, m.unlock+";\n") // the end of the session does it as well
	}
	_ = m.stdin.Close()
	timer := time.AfterFunc(windDown, func() { _ = m.cmd.Process.Kill() })
	defer timer.Stop()
	m.wait()
	return nil
}

// scan passes lines on until their end.
func scan(r io.Reader, lines chan<- string) {
	defer close(lines)
	s := bufio.NewScanner(r)
	for s.Scan() {
		lines <- s.Text()
	}
}
