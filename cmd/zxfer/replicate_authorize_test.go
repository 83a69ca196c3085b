package main

import (
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/replicate/jobfile"
)

const exampleKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGwKBqHzhGFQwcAZcBtTgWgZRA1i3BWlvBeHz4ZyKKJk me@alpha"

// forced parses a line of authorized_keys like sshd. Options end at the first blank outside
// quotes, and \" is a quote within quotes.
//
// https://github.com/openssh/openssh-portable/blob/V_9_9_P1/auth2-pubkeyfile.c (auth_check_authkey_line)
func forced(t *testing.T, line string) (command, key string) {
	t.Helper()
	rest, ok := strings.CutPrefix(line, `restrict,command="`)
	require.True(t, ok, line)
	for {
		require.NotEmpty(t, rest, line)
		switch {
		case strings.HasPrefix(rest, `\"`):
			command, rest = command+`"`, rest[2:]
		case rest[0] == '"':
			key, ok = strings.CutPrefix(rest, `" `)
			require.True(t, ok, "unexpected option: %s", line)
			return command, key
		default:
			command, rest = command+rest[:1], rest[1:]
		}
	}
}

// FuzzAuthorizedKey expects one line for every accepted input. The line must start the agent
// with exactly the given flags, and contain exactly the given key.
func FuzzAuthorizedKey(f *testing.F) {
	for _, odd := range []string{"", "a b", "a\nssh-rsa AAAA", `"`, `",command="id`, `\`, "'", "$x", "`id`", "%u", "\r", "\x00", "!", "ä", ";id", "\u2028"} {
		f.Add("/usr/bin/zxfer"+odd, "/var/log/zxfer"+odd, "tank/vm"+odd, exampleKey+odd)
		f.Add("/usr/bin/zxfer", "", "tank", "ssh-ed25519"+odd+" AAAA"+odd)
	}
	f.Fuzz(func(t *testing.T, program, audit, dataset, public string) {
		p, err := authz.Parse([]string{"receive=" + dataset, "send-decrypted=" + dataset}, []string{"10.0.0.0/8"}, true)
		if err != nil || jobfile.CheckPath(program) != nil || jobfile.CheckPath(audit) != nil {
			return
		}
		agent := append(append([]string{"agent"}, p.Flags()...), "--audit", audit)
		line, err := authorizedKey(agent, program, public)
		if err != nil {
			return
		}
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "\r")
		command, key := forced(t, line)
		require.Equal(t, strings.TrimSpace(public), key)
		words, err := shellquote.Split(command)
		require.NoError(t, err)
		require.Equal(t, append([]string{program}, agent...), words)
		require.False(t, strings.ContainsAny(command, "$`\\\"!%;&|<>*?"), "the command contains shell metacharacters: %s", command)
	})
}

func TestAuthorizedKey(t *testing.T) {
	t.Parallel()
	line, err := authorizedKey([]string{"agent", "--allow", "send=tank/a b"}, "/usr/bin/zxfer", exampleKey+"\n")
	require.NoError(t, err)
	require.Equal(t, `restrict,command="/usr/bin/zxfer agent --allow 'send=tank/a b'" `+exampleKey, line)
	for name, c := range map[string]struct{ public, want string }{
		"private key":                  {"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA", "private key"},
		"two lines":                    {exampleKey + "\n" + exampleKey, "one public key"},
		"no key":                       {"ssh-ed25519 me@alpha", "not an ssh public key"},
		"wrong key type":               {strings.Replace(exampleKey, "ssh-ed25519", "ssh-rsa", 1), "not an ssh public key"},
		"leading options":              {`command="id" ` + exampleKey, "not an ssh public key"},
		"control character in comment": {exampleKey + "\x1b[2J", "not an ssh public key"},
		"empty":                        {"", "not an ssh public key"},
	} {
		_, err := authorizedKey(nil, "/usr/bin/zxfer", c.public)
		require.ErrorContains(t, err, c.want, name)
	}
}
