package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/agent"
	"zxfer/pkg/agent/authz"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
)

// restriction holds the flags of a restricted agent.
type restriction struct {
	allow, peers []string
	appendOnly   bool
	audit        string
	set          func() bool
}

func (r *restriction) define(cmd *cobra.Command) {
	flagGroup(cmd, "Restriction", func(f *pflag.FlagSet) {
		f.StringArrayVar(&r.allow, "allow", nil, "grant `VERB=DATASET`; repeatable (zxfer help grants)")
		f.BoolVar(&r.appendOnly, "append-only", false, "destroy nothing, and release only holds of jobs")
		f.StringArrayVar(&r.peers, "peer", nil, "allow data connections only with `ADDRESS` or prefix (default ssh client)")
		f.StringVar(&r.audit, "audit", "", "log requests to `FILE` (default system log)")
	})
	completeGrants(cmd)
	f := cmd.Flags()
	r.set = func() bool {
		return f.Changed("allow") || f.Changed("append-only") || f.Changed("peer") || f.Changed("audit")
	}
}

func (r *restriction) check() error {
	switch {
	case !r.given():
		return nil
	case len(r.allow) == 0:
		return fault.Usagef("zxfer replicate authorize --help", "--allow is missing: the restricted agent would permit nothing")
	}
	_, err := authz.Parse(r.allow, r.peers, r.appendOnly)
	return err
}

// given reports whether the agent is restricted. A flag without a value counts, so that a mistake
// of an administrator does not open the account.
func (r *restriction) given() bool { return r.set() }

// serve serves under the policy. It does not run the client's command, which sshd leaves in
// SSH_ORIGINAL_COMMAND.
func (r *restriction) serve(ctx context.Context, s *agent.Server, local *hosts.Local, a *app) error {
	client := strings.Fields(os.Getenv("SSH_CONNECTION"))
	peers := r.peers
	if len(peers) == 0 && len(client) == 4 {
		peers = client[:1]
	}
	p, err := authz.Parse(r.allow, peers, r.appendOnly)
	if err != nil {
		return err
	}
	who := "a local client"
	if len(client) == 4 {
		who = client[0] + " port " + client[1]
	}
	audit, err := openAudit(r.audit, who)
	if err != nil {
		// The client gets the error as an answer: without a session it would look for a shell.
		s.Host, s.Guard = unlogged{local, err}, authz.NewGuard(p, local, func(string) {})
		return s.Serve(ctx, a.stdin, a.stdout)
	}
	defer audit.Close()
	audit.log("session started: " + p.String())
	local.Restrict(p.Flags())
	s.Guard = authz.NewGuard(p, local, audit.log)
	err = s.Serve(ctx, a.stdin, a.stdout)
	if err != nil {
		audit.log("session ended: refused: " + err.Error())
	} else {
		audit.log("session ended")
	}
	return err
}

// unlogged is a host that serves no request, because there is no log.
type unlogged struct {
	hosts.Host
	err error
}

// Run returns the reason.
func (u unlogged) Run(context.Context, *hosts.Request) error { return u.err }

// buildNote returns a note if the client's bootstrap script wanted another build of zxfer.
// Nothing else of the client's command is used.
func buildNote(command string) string {
	if len(command) > 64<<10 {
		return ""
	}
	wanted := regexp.MustCompile(`' zxfer ([0-9a-f]{64}) (?:([0-9a-z.+-]{1,40}/[0-9]{1,9})(?: |$))?`).FindStringSubmatch(command)
	self, err := sshexec.ThisBinary()
	if wanted == nil || err != nil || wanted[1] == self.ID || wanted[2] != "" && wanted[2] == releaseAndProtocol() {
		return ""
	}
	here, there := fmt.Sprintf("%s, build %.12s", buildVersion(), self.ID), fmt.Sprintf("build %.12s", wanted[1])
	if version, _, ok := strings.Cut(wanted[2], "/"); ok {
		there = version + ", " + there
	}
	return fmt.Sprintf("the account starts zxfer %s, the local version is %s; if a request is refused as unknown, install the same version on both hosts", here, there)
}

// auditLog records what a restricted agent refused and did.
type auditLog struct {
	mu     sync.Mutex
	out    io.WriteCloser
	client string
	file   bool
}

// auditHint is the hint for a host without a system log.
const auditHint = "log to a file: add to the command of the key in authorized_keys there: --audit /var/log/zxfer-agent.log"

// openAudit opens the log. If it fails, the agent does not serve.
func openAudit(path, who string) (*auditLog, error) {
	if path != "" {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fault.Refusef("let the account append to the file of --audit", "the restricted key serves no request without a log: %w", err)
		}
		return &auditLog{out: f, client: who, file: true}, nil
	}
	w, err := syslog.New(syslog.LOG_AUTH|syslog.LOG_NOTICE, "zxfer-agent")
	if err != nil {
		return nil, fault.Refusef(auditHint, "the restricted key serves no request without a log: %w", err)
	}
	return &auditLog{out: w, client: who}, nil
}

func (l *auditLog) log(text string) {
	line := l.client + ": " + text + "\n"
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file {
		line = time.Now().UTC().Format(time.RFC3339) + " " + line
	}
	if _, err := io.WriteString(l.out, line); err != nil && !errors.Is(err, os.ErrClosed) {
		fmt.Fprintln(os.Stderr, "zxfer agent: log:", err) // ssh shows it to the client
	}
}

func (l *auditLog) Close() { _ = l.out.Close() } // nothing is buffered
