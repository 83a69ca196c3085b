package guard

import (
	"context"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
)

// postgresql is a PostgreSQL server. It recovers from a snapshot of all its files in one
// transaction as after a power failure, and a checkpoint just before shortens the recovery. Backup
// mode serves copies made file by file or from several pools. Here it would only add a
// backup_label, which recovery does not need.
//
// https://www.postgresql.org/docs/current/backup-file.html
type postgresql struct{ *freeze.Spec }

func (p *postgresql) freeze(ctx context.Context) (f frozen, err error) {
	env := []string{"PGCONNECT_TIMEOUT=" + strconv.Itoa(max(2, int(p.Within.Seconds()))), "PGAPPNAME=zxfer"}
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
		return f, fault.Failf("the account needs the role pg_checkpoint (superuser before PostgreSQL 15); for peer authentication: run_as", "no checkpoint: %w", err)
	}
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		if at, ok := strings.CutPrefix(line, "at "); ok {
			f.Position = "WAL " + at
		}
		if in, ok := strings.CutPrefix(line, "in /"); ok {
			f.Places = append(f.Places, "/"+in)
			f.Places = append(f.Places, "/"+in+"/pg_wal")
		}
	}
	return f, nil
}

func (p *postgresql) prove(context.Context) error { return nil } // the snapshot is one transaction

func (p *postgresql) thaw(context.Context) error { return nil }
