package main

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/zfs"
)

func newReplicateAuthorize(a *app) *cobra.Command {
	var r restriction
	var program, key string
	cmd := &cobra.Command{
		Use:   "authorize [FLAGS]",
		Short: "Print the authorized_keys line that restricts a key",
		Long: `Print an authorized_keys line that restricts the key of another host to the
given grants (zxfer help grants). The key opens no shell and forwards nothing.
Install the other host's version of zxfer on this host first.`,
		Example: `  zxfer replicate authorize --allow receive=vault/web1 --append-only --key k.pub
      on a backup host: receive into vault/web1, and destroy nothing
  zxfer replicate authorize --allow send=tank/vm --key -
      on a source: let a pull job read tank/vm, take snapshots and destroy them
  zxfer replicate authorize --allow status --key monitor.pub
      show the status of this host's jobs, and nothing else`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fault.Usagef("grant datasets: --allow VERB=DATASET\nonly jobs with a remote source or target need a key",
					"authorize takes no arguments: %q", args[0])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(r.allow) == 0 {
				return fault.Usagef("zxfer replicate authorize --help", "--allow is missing")
			}
			public, err := readKey(interruptibleReader{cmd.Context(), a.stdin}, key)
			if err != nil {
				return err
			}
			command, err := forcedCommand(cmd.Flags(), r.allow, r.peers, r.appendOnly, r.audit)
			if err != nil {
				return err
			}
			if program == "" {
				if program, err = os.Executable(); err != nil {
					return err
				}
			}
			if err := jobfile.CheckPath(program); err != nil {
				return fmt.Errorf("--program: %w", err)
			}
			line, err := authorizedKey(command, program, public)
			if err != nil {
				return err
			}
			if command[0] == "agent" && r.audit == "" {
				if log, err := openAudit("", ""); err == nil {
					log.Close()
				} else {
					fmt.Fprintln(a.stderr, "note: this host has no system log, and the key serves no request without a log: add --audit FILE")
				}
			}
			_, err = fmt.Fprintln(a.stdout, line)
			return err
		},
	}
	r.define(cmd)
	flagGroup(cmd, "Line", func(f *pflag.FlagSet) {
		f.StringVar(&key, "key", "", "read the public key from `FILE` (- for standard input)")
		f.StringVar(&program, "program", "", "start zxfer at `PATH` (default this binary)")
	})
	return cmd
}

// statusGrant is the grant that lets a key query the status of jobs.
const statusGrant = "status"

// forcedCommand returns the arguments with which sshd starts zxfer for a key.
func forcedCommand(given *pflag.FlagSet, allow, peers []string, appendOnly bool, audit string) ([]string, error) {
	if slices.Contains(allow, statusGrant) {
		if len(allow) > 1 {
			return nil, fault.Usagef("use another key for --allow status", "--allow status cannot be combined: sshd runs one command per key")
		}
		return strings.Fields(statusCommand), refuseIneffective(given, "with --allow status", "append-only", "peer", "audit")
	}
	p, err := authz.Parse(allow, peers, appendOnly)
	if err != nil {
		return nil, err
	}
	command := append([]string{"agent"}, p.Flags()...)
	if audit != "" {
		if err := jobfile.CheckPath(audit); err != nil {
			return nil, fmt.Errorf("--audit: %w", err)
		}
		command = append(command, "--audit", audit)
	}
	return command, nil
}

func readKey(stdin io.Reader, name string) (string, error) {
	var text []byte
	var err error
	switch name {
	case "":
		return "", fault.Usagef("create a key on the remote host (ssh-keygen -t ed25519) and copy its .pub file here", "--key is missing")
	case "-":
		text, err = io.ReadAll(io.LimitReader(stdin, 1<<16))
	default:
		text, err = readFile(name)
	}
	return string(text), err
}

// authorizedKey returns the authorized_keys line that makes sshd start a command of zxfer for a
// public key. command and program must have passed authz.Parse and jobfile.CheckPath, so that
// blanks are the only characters that sshd and the account's shell require to be quoted.
//
// https://man.openbsd.org/sshd.8 (AUTHORIZED_KEYS FILE FORMAT)
func authorizedKey(command []string, program, public string) (string, error) {
	public = strings.TrimSpace(public)
	switch f := strings.Fields(public); {
	case strings.Contains(public, "PRIVATE KEY"):
		return "", fault.Usagef("use the .pub file", "the input is a private key, which must not leave its host")
	case strings.ContainsAny(public, "\r\n"):
		return "", fault.Usagef("", "expected one public key on one line")
	case len(f) < 2 || !publicKey(f[0], f[1]) || strings.ContainsFunc(public, unicode.IsControl):
		return "", fault.Usagef("use the .pub file that ssh-keygen created", "the input is not an ssh public key")
	}
	return `restrict,command="` + zfs.CommandLine(append([]string{program}, command...)) + `" ` + public, nil
}

// keyLinePattern is an extended regular expression, for grep and sed, that matches the lines of
// authorizedKey and lines that start an unrestricted agent.
const keyLinePattern = `command="([^"]*zxfer[^ "]* agent|[^"]+ agent --allow |[^"]+ ` + statusCommand + `")`

// publicKey reports whether key is a public key of the given kind.
//
// https://www.rfc-editor.org/rfc/rfc4253#section-6.6
func publicKey(kind, key string) bool {
	blob, err := base64.StdEncoding.DecodeString(key)
	if err != nil || len(blob) < 4 {
		return false
	}
	n := uint64(binary.BigEndian.Uint32(blob))
	return n > 0 && n < uint64(len(blob)-4) && string(blob[4:4+n]) == kind
}
