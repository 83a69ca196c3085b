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
	"zxfer/pkg/replicate"
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
  zxfer replicate authorize --allow send=tank/vm --append-only --key -
      on a source: read tank/vm, encrypted datasets only as raw streams
  zxfer replicate authorize --allow status --key monitor.pub
      show the status of this host's jobs, and nothing else`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fault.Usagef("name datasets: --allow "+authz.Grants+"\na job whose source and targets are on this host, or that has no target, has nothing to authorize: no other host comes here",
					"authorize takes no job: %q", args[0])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(r.allow) == 0 {
				return fault.Usagef("write --allow "+authz.Grants, "what the key may do is missing: --allow")
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
			if err := replicate.CheckPath(program); err != nil {
				return fmt.Errorf("--program: %w", err)
			}
			line, err := authorizedKey(command, program, public)
			if err == nil {
				_, err = fmt.Fprintln(a.stdout, line)
			}
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
			return nil, fault.Usagef("print a line for a key of its own", "--allow status stands alone: sshd starts one command for a key")
		}
		return strings.Fields(statusCommand), refuseIneffective(given, "with --allow status, which starts no agent", "append-only", "peer", "audit")
	}
	p, err := authz.Parse(allow, peers, appendOnly)
	if err != nil {
		return nil, err
	}
	command := append([]string{"agent"}, p.Flags()...)
	if audit != "" {
		if err := replicate.CheckPath(audit); err != nil {
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
		return "", fault.Usagef("on the other host: ssh-keygen -t ed25519, then bring the .pub file here", "whose key it is is missing: --key")
	case "-":
		text, err = io.ReadAll(io.LimitReader(stdin, 1<<16))
	default:
		text, err = readFile(name)
	}
	return string(text), err
}

// authorizedKey returns the authorized_keys line that makes sshd start a command of zxfer for a
// public key. command and program must have passed authz.Parse and replicate.CheckPath, so that
// blanks are the only characters that sshd and the account's shell require to be quoted.
//
// https://man.openbsd.org/sshd.8 (AUTHORIZED_KEYS FILE FORMAT)
func authorizedKey(command []string, program, public string) (string, error) {
	public = strings.TrimSpace(public)
	switch f := strings.Fields(public); {
	case strings.Contains(public, "PRIVATE KEY"):
		return "", fault.Usagef("give the .pub file", "this is a private key, which should not leave its host")
	case strings.ContainsAny(public, "\r\n"):
		return "", fault.Usagef("", "one public key is wanted, on one line")
	case len(f) < 2 || !publicKey(f[0], f[1]) || strings.ContainsFunc(public, unicode.IsControl):
		return "", fault.Usagef("give the .pub file that ssh-keygen made", "this is not a public key of ssh")
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
