package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/probe"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/zfs"
)

// restrictedKey gives alpha a second key, for which beta only starts an agent with these
// flags. It returns the remote shell that uses the key, and the path of the agent's log.
func restrictedKey(t *testing.T, flags ...string) (rsh, audit string) {
	t.Helper()
	lab(t)
	dir := t.TempDir()
	key := dir + "/key"
	audit = dir + "/audit"
	run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	public, err := os.ReadFile(key + ".pub")
	require.NoError(t, err)
	line, err := authorizedKey(slices.Concat([]string{"agent"}, flags, []string{"--audit", audit}), alphaBin, string(public))
	require.NoError(t, err)
	keys := labDir + "/user_key.pub"
	before, err := os.ReadFile(keys)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.WriteFile(keys, before, 0o600)) })
	require.NoError(t, os.WriteFile(keys, append(before, line+"\n"...), 0o600))
	config, err := os.ReadFile(labDir + "/ssh_config")
	require.NoError(t, err)
	sshConfig := dir + "/ssh_config"
	require.NoError(t, os.WriteFile(sshConfig, bytes.ReplaceAll(config, []byte(labDir+"/user_key"), []byte(key)), 0o600))
	return "ssh -F " + sshConfig, audit
}

// sendHostile sends one message over ssh to the restricted agent. It returns the answer, which
// is nil if there was no answer, and all output.
func sendHostile(t *testing.T, rsh string, message []byte) (answer map[string]any, all string) {
	t.Helper()
	argv := append([]string{"netns", "exec", alphaPool}, strings.Fields(rsh)...)
	cmd := exec.Command("ip", append(argv, "beta", "zfs destroy -r "+betaPool+"; zxfer agent")...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(testenv.Timeout(), func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var seen bytes.Buffer
	hello := io.TeeReader(out, &seen)
	one := make([]byte, 1)
	for !strings.HasSuffix(seen.String(), "\n") || !strings.Contains(seen.String(), "zxfer-agent") {
		if _, err := hello.Read(one); err != nil {
			break
		}
	}
	streams := mux.New(in, "")
	defer streams.End(io.EOF)
	go func() { _ = streams.Run(out) }()
	_, err = streams.Control().Write(message)
	require.NoError(t, err)
	decompressed, err := zstd.NewReader(streams.Control(), zstd.WithDecoderConcurrency(1))
	require.NoError(t, err)
	read := io.TeeReader(decompressed, &seen)
	for answer == nil {
		var n uint32
		if binary.Read(read, binary.BigEndian, &n) != nil {
			break
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(read, text); err != nil {
			break
		}
		var m map[string]any
		require.NoError(t, json.Unmarshal(text, &m))
		if m["kind"] == "result" {
			answer = m
		}
	}
	_ = in.Close()
	_, _ = io.Copy(io.Discard, read)
	_ = cmd.Wait() // the agent may have ended the session because of the message
	return answer, seen.String() + stderr.String()
}

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// These are the ends of a transfer, as JSON.
const (
	acceptEnd = `{"accept":{"session":"x"}}`
	dialEnd   = `{"dial":{"ticket":{"mode":"tls","address":"10.77.0.1:9","session":"","secret":"","streams":1,"deadline":1}}}`
)

func streamEnd(spec string) string { return `{"stream":{"spec":` + spec + `}}` }

// transferRequest returns a request for a transfer.
func transferRequest(from, to string) []byte {
	return request("transfer", `{"from":`+from+`,"to":`+to+`}`)
}

func request(op, body string) []byte {
	return frame(`{"kind":"call","id":7,"op":"` + op + `","body":` + body + `}`)
}

// TestRestrictedAgentHostile sends one forbidden request of each kind over ssh. pkg/agent
// tests all of them.
func TestRestrictedAgentHostile(t *testing.T) {
	lab(t)
	vault, vm := betaPool+"/vault", betaPool+"/vm"
	for _, d := range []string{vault, vault + "/backup", vault + "/backup2", vault + "/secret", vm, vm + "2"} {
		zfsCmd(t, "create", d)
		zfsCmd(t, "snapshot", d+"@a")
	}
	t.Cleanup(func() {
		for _, d := range []string{vault, vm, vm + "2"} {
			releaseAll(d)
			_ = exec.Command("zfs", "destroy", "-R", d).Run()
		}
	})
	zfsCmd(t, "hold", "legal", vault+"/backup@a")
	rsh, audit := restrictedKey(t, "--allow", "receive="+vault+"/backup", "--allow", "send="+vm, "--append-only")

	b := vault + "/backup"
	receive := func(spec string) []byte {
		return transferRequest(dialEnd, streamEnd(spec))
	}
	send := func(spec string) []byte { return request("estimate", `[`+spec+`]`) }
	tests := []struct {
		name    string
		message []byte
		says    string // part of the refusal; if "", the session ends without an answer
	}{
		{"destroy granted snapshot", request("destroy", `["`+b+`@a"]`), "append-only"},
		{"list dataset with same prefix", request("list", `{"dataset":"`+b+`2"}`), "permit"},
		{"send other dataset", send(`{"dataset":"` + vault + `/secret","to":"a","flags":{}}`), "permit"},
		{"receive into other dataset", receive(`{"target":"` + vault + `/secret"}`), "receiving into"},
		{"receive with mountpoint", receive(`{"target":"` + b + `/x","set":{"mountpoint":"/etc"}}`), "mountpoint"},
		{"connect to other host", transferRequest(strings.Replace(dialEnd, "10.77.0.1:9", "192.0.2.1:22", 1), streamEnd(`{"target":"`+b+`/x"}`)), "connect"},
		{"listen on all addresses", request("offer", `{"mode":"plain","streams":1,"address":"0.0.0.0","deadline":1}`), "one address"},
		{"unknown operation", request("shell", `"id"`), "no rule"},
		{"two JSON values", frame(`{"kind":"call","id":7,"op":"list","body":{"dataset":"` + b + `"}}{}`), ""},
		{"oversized message", []byte{0xff, 0xff, 0xff, 0xff, '{'}, ""},
	}
	before := state(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			logged, err := os.ReadFile(audit)
			if !os.IsNotExist(err) {
				require.NoError(t, err)
			}
			answer, all := sendHostile(t, rsh, tt.message)
			if tt.says == "" {
				require.Nil(t, answer, all)
			} else {
				require.NotNil(t, answer, "%s", all)
				require.NotContains(t, answer, "body")
				failed := answer["error"].(map[string]any)
				require.Contains(t, failed["text"], "the agent's policy forbids it")
				require.Contains(t, failed["text"], tt.says)
				require.EqualValues(t, 3, failed["class"])
			}
			now, err := os.ReadFile(audit)
			require.NoError(t, err)
			fresh := string(now[len(logged):])
			require.Contains(t, fresh, "refused")
			require.Contains(t, fresh, "10.77.0.1 port ")
			require.LessOrEqual(t, strings.Count(fresh, "\n"), 4, "the request added lines to the log:\n%s", fresh)
		})
	}
	require.Equal(t, before, state(t), "a refused request changed something")
	requireNoLeftovers(t)
}

// TestRestrictedAgentServesGrants uses the granted operations. The command is the bootstrap
// script, which sshd ignores.
func TestRestrictedAgentServesGrants(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", source)
	zfsCmd(t, "create", "-V", "8m", source+"/vol")
	fill(t, source, "f", 1<<20)
	zfsCmd(t, "set", "org.example:note=x", source)
	zfsCmd(t, "create", "-o", "canmount=off", target)
	rsh, audit := restrictedKey(t, "--allow", "receive="+target, "--append-only")
	for _, snap := range []string{"@a", "@b", "@c"} {
		zfsCmd(t, "snapshot", "-r", source+snap)
		if snap != "@b" {
			mustZxfer(t, "send", "-e", rsh, "-r", "--hold", "zxfer:job:t", source+snap, "beta:"+target+"/copy")
		}
	}
	got := guids(t, target+"/copy")
	require.Equal(t, guids(t, source), got)
	require.Equal(t, guids(t, source+"/vol"), guids(t, target+"/copy/vol"))
	for name, want := range map[string]string{"canmount": "noauto", "readonly": "on", zfs.FlagsProperty: "L"} {
		require.Contains(t, zfsCmd(t, "get", "-H", "-o", "value", name, target+"/copy"), want, name)
	}
	o := zxfer(t, "send", "-e", rsh, source+"@c", "beta:"+betaPool+"/elsewhere")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "policy forbids")
	o = zxfer(t, "send", "-e", rsh, "-o", "mountpoint=/etc", source+"@c", "beta:"+target+"/other")
	require.Equal(t, 3, o.code, o)
	logged, err := os.ReadFile(audit)
	require.NoError(t, err)
	require.Contains(t, string(logged), "admitted transfer")
	require.NotContains(t, string(logged), "secret")
}

// TestRestrictedAgentDoctor expects doctor to name the checks that a restricted key
// forbids, and to run the others.
func TestRestrictedAgentDoctor(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", source)
	zfsCmd(t, "snapshot", source+"@a")
	zfsCmd(t, "create", "-o", "canmount=off", target)
	rsh, _ := restrictedKey(t, "--allow", "receive="+target, "--append-only")
	before := state(t)
	for _, args := range [][]string{{"beta"}, {source, "beta:" + target + "/copy"}} {
		args = append([]string{"doctor", "-e", rsh, "--time", "100ms", "--json"}, args...)
		o := zxfer(t, args...)
		require.Equal(t, 0, o.code, o)
		var r doctor.Report
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
		for _, id := range []string{"platform", "mounts"} {
			i := slices.IndexFunc(r.Findings, func(f finding.Finding) bool { return f.ID == id && f.Host == "beta" })
			require.GreaterOrEqual(t, i, 0, o)
			require.Equal(t, finding.Note, r.Findings[i].Severity)
			require.Contains(t, r.Findings[i].Summary, "not checked: beta: the agent's policy forbids it")
		}
		require.Len(t, r.Grants, 1, o)
		require.Contains(t, r.Grants[0].Permissions, "--allow receive="+target+" --append-only")
		require.Subset(t, r.Grants[0].Forbidden, []string{"platform", "mounts", "memory", "link"})
		if len(r.Plan) > 0 {
			require.Contains(t, r.Grants[0].Permitted, "space")
		}
		require.True(t, slices.ContainsFunc(r.Ceilings, func(c probe.Ceiling) bool {
			return c.Host == "beta" && strings.Contains(c.Skipped, "the agent's policy forbids it")
		}), o)
		require.True(t, slices.ContainsFunc(r.Ceilings, func(c probe.Ceiling) bool { return c.BytesPerSecond > 0 }), "no measurement of the local host: %s", o)
	}
	o := zxfer(t, "doctor", "-e", rsh, "--time", "100ms", source, "beta:"+target+"/copy")
	t.Log(o)
	require.Contains(t, o.stdout, "beta: this key is restricted\n  permits   --allow receive="+target+" --append-only")
	require.Contains(t, o.stdout, "  seen      versions, user, permitted datasets")
	require.NotContains(t, o.stdout, "policy forbids", "the restriction is reported twice")
	require.Equal(t, before, state(t))
}

// TestRestrictedAgentStreamProperties sends a stream that contains properties, and expects
// the agent to refuse it.
func TestRestrictedAgentStreamProperties(t *testing.T) {
	mount := t.TempDir() + "/evil" // created before the dataset, so that it is deleted after it
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint="+mount, "-o", "setuid=on", source)
	zfsCmd(t, "set", "fscontext=system_u:object_r:shadow_t:s0", source)
	zfsCmd(t, "snapshot", source+"@a")
	zfsCmd(t, "create", "-o", "canmount=off", "-o", "setuid=off", target)
	rsh, audit := restrictedKey(t, "--allow", "receive="+target, "--append-only")
	// The zfs of this sender adds -p to every stream.
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(bin+"/zfs", []byte(`#!/bin/sh
if [ "$1" = send ]; then shift; exec /usr/sbin/zfs send -p "$@"; fi
exec /usr/sbin/zfs "$@"
`), 0o755))
	o := startAs(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, alphaBin, "send", "-e", rsh, source+"@a", "beta:"+target+"/copy").wait(t)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "not what was planned: a package")
	require.Error(t, exec.Command("zfs", "list", target+"/copy").Run(), "the target was created")
	logged, err := os.ReadFile(audit)
	require.NoError(t, err)
	require.Regexp(t, `refused transfer after admission: .*not what was planned: a package.*: receive "`+target+`/copy"`, string(logged))

	// If the sender omits the properties that prevent a mount of the copy, the agent sets
	// them.
	o = zxfer(t, "send", "-e", rsh, "-x", "canmount", "-x", "readonly", source+"@a", "beta:"+target+"/copy")
	require.Equal(t, 0, o.code, o)
	for name, want := range map[string]string{"mountpoint": mountpoint(t, target) + "/copy", "setuid": "off", "canmount": "noauto", "readonly": "on", "fscontext": "none"} {
		require.Equal(t, want, strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", name, target+"/copy")), name)
	}
}

// TestRestrictedAgentSendsRawOnly fetches an encrypted dataset whose key is loaded. Without
// the grant send-decrypted, a restricted key gets only raw streams.
func TestRestrictedAgentSendsRawOnly(t *testing.T) {
	lab(t)
	copied, source := dataset(t) // the source is on beta
	key := t.TempDir() + "/key"
	require.NoError(t, os.WriteFile(key, []byte("correct horse battery\n"), 0o600))
	zfsCmd(t, "create", source)
	enc := source + "/enc"
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o", "keylocation=file://"+key, enc)
	zfsCmd(t, "create", enc+"/child")
	zfsCmd(t, "create", source+"/plain")
	for _, d := range []string{enc, enc + "/child", source + "/plain"} {
		fill(t, d, "f", 1<<20)
	}
	zfsCmd(t, "snapshot", "-r", source+"@a")
	zfsCmd(t, "create", "-o", "canmount=off", copied)

	// These are resume tokens of a plain stream and of a raw stream.
	tokens := map[string]string{}
	for name, flag := range map[string]string{"plain": "", "raw": "-w"} {
		to := copied + "/" + name
		out, err := exec.Command("sh", "-c", "zfs send "+flag+" "+enc+"@a | head -c 600000 | zfs receive -s -u "+to).CombinedOutput()
		require.Error(t, err, "%s", out)
		tokens[name] = strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "receive_resume_token", to))
		zfsCmd(t, "receive", "-A", to)
	}

	rsh, _ := restrictedKey(t, "--allow", "send="+source, "--append-only")
	for name, message := range map[string][]byte{
		"estimate":                             request("estimate", `[{"dataset":"`+enc+`","to":"a","flags":{}}]`),
		"digest of child":                      request("digest", `{"dataset":"`+enc+`/child","to":"a","flags":{"compressed":true}}`),
		"transfer with token":                  transferRequest(streamEnd(`{"dataset":"`+enc+`","to":"a","flags":{"raw":true},"token":"`+tokens["plain"]+`"}`), dialEnd),
		"transfer of other dataset with token": transferRequest(streamEnd(`{"dataset":"`+source+`/plain","to":"a","flags":{},"token":"`+tokens["plain"]+`"}`), dialEnd),
	} {
		answer, all := sendHostile(t, rsh, message)
		require.NotNil(t, answer, "%s: %s", name, all)
		require.NotContains(t, answer, "body", name)
		require.Contains(t, answer["error"].(map[string]any)["text"], "--allow send-decrypted="+enc, name)
	}
	for name, message := range map[string][]byte{
		"raw digest":    request("digest", `{"dataset":"`+enc+`","to":"a","flags":{"raw":true}}`),
		"raw token":     request("estimate", `[{"dataset":"`+enc+`","to":"a","flags":{},"token":"`+tokens["raw"]+`"}]`),
		"not encrypted": request("digest", `{"dataset":"`+source+`/plain","to":"a","flags":{}}`),
	} {
		answer, all := sendHostile(t, rsh, message)
		require.Contains(t, answer, "body", "%s: %s", name, all)
	}

	before := state(t)
	o := zxfer(t, "send", "-e", rsh, "--decrypt", "beta:"+enc+"@a", copied+"/open")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "--allow send-decrypted="+enc)
	require.Equal(t, before, state(t))
	mustZxfer(t, "send", "-e", rsh, "-r", "--verify", "beta:"+source+"@a", copied+"/all")
	require.Equal(t, "aes-256-gcm", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "encryption", copied+"/all/enc/child")))
	require.Equal(t, "off", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "encryption", copied+"/all/plain")))

	rsh, _ = restrictedKey(t, "--allow", "send-decrypted="+enc, "--append-only")
	mustZxfer(t, "send", "-e", rsh, "--decrypt", "--verify", "beta:"+enc+"/child@a", copied+"/open")
	requireSameFiles(t, enc+"/child", copied+"/open")
}

// TestRestrictedAgentVerify verifies sends with a key that may only
// receive, also if the target encrypts the data. The key gets no digest of the decrypted
// contents of a raw copy.
func TestRestrictedAgentVerify(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	key := t.TempDir() + "/key"
	require.NoError(t, os.WriteFile(key, []byte("correct horse battery\n"), 0o600))
	encryption := []string{"create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o", "keylocation=file://" + key}
	zfsCmd(t, "create", source)
	zfsCmd(t, append(encryption, source+"/enc")...)
	fill(t, source, "f", 1<<20)
	fill(t, source+"/enc", "f", 1<<20)
	zfsCmd(t, "snapshot", "-r", source+"@a")
	zfsCmd(t, append(encryption, "-o", "canmount=off", target)...)
	rsh, _ := restrictedKey(t, "--allow", "receive="+target, "--append-only")
	mustZxfer(t, "send", "-e", rsh, "--verify", source+"@a", "beta:"+target+"/plain")
	require.Equal(t, target, strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "encryptionroot", target+"/plain")))
	mustZxfer(t, "send", "-e", rsh, "--verify", source+"/enc@a", "beta:"+target+"/raw")
	zfsCmd(t, "load-key", "-L", "file://"+key, target+"/raw")
	answer, all := sendHostile(t, rsh, request("digest", `{"dataset":"`+target+`/raw","to":"a","flags":{}}`))
	require.Contains(t, answer["error"].(map[string]any)["text"], "--allow send-decrypted="+target+"/raw", all)
}

// TestRestrictedAgentKeepsKey sends from a compromised source that changed its key.
// Without the grant receive-rekey, the copy keeps the key that opens its data
// (openzfs#12614).
func TestRestrictedAgentKeepsKey(t *testing.T) {
	lab(t)
	source, vault := dataset(t)
	dir := t.TempDir()
	first, second := dir+"/first", dir+"/second"
	require.NoError(t, os.WriteFile(first, []byte("the first passphrase"), 0o600))
	require.NoError(t, os.WriteFile(second, []byte("another passphrase"), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o", "keylocation=file://"+first, source)
	zfsCmd(t, "create", vault)
	zfsCmd(t, "snapshot", source+"@a")
	rsh, _ := restrictedKey(t, "--allow", "receive="+vault, "--append-only")
	target := vault + "/copy"
	mustZxfer(t, "send", "-e", rsh, source, "beta:"+target)
	zfsCmd(t, "snapshot", source+"@b")
	mustZxfer(t, "send", "-e", rsh, source, "beta:"+target)

	zfsCmd(t, "change-key", "-o", "keylocation=file://"+second, source)
	zfsCmd(t, "snapshot", source+"@c")
	o := zxfer(t, "send", "-e", rsh, source, "beta:"+target)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "another key")
	require.Contains(t, o.stderr, "--allow receive-rekey="+target)
	require.NoError(t, exec.Command("zfs", "load-key", "-L", "file://"+first, target).Run(), "the former key does not open the copy")
	require.NoError(t, exec.Command("zfs", "unload-key", target).Run())

	rsh, _ = restrictedKey(t, "--allow", "receive-rekey="+vault, "--append-only")
	mustZxfer(t, "send", "-e", rsh, source, "beta:"+target)
	require.NoError(t, exec.Command("zfs", "load-key", "-L", "file://"+second, target).Run())
}

// TestRestrictedAgentKeepsKeyOnResume resumes an incremental send of a source
// that changed its key, with a snapshot with the new key as its origin. Older ZFS ignores
// this origin, so the agent must protect the target's key.
func TestRestrictedAgentKeepsKeyOnResume(t *testing.T) {
	lab(t)
	_, base := dataset(t)
	source, vault := base+"/source", base+"/vault"
	dir := t.TempDir()
	first, second := dir+"/first", dir+"/second"
	require.NoError(t, os.WriteFile(first, []byte("the first passphrase"), 0o600))
	require.NoError(t, os.WriteFile(second, []byte("another passphrase"), 0o600))
	zfsCmd(t, "create", base)
	zfsCmd(t, "create", vault)
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o", "keylocation=file://"+first, source)
	zfsCmd(t, "snapshot", source+"@a")
	fill(t, source, "f", 4<<20)
	zfsCmd(t, "snapshot", source+"@b")
	copied, own := vault+"/copy", vault+"/own"
	run(t, "sh", "-c", "zfs send -w "+source+"@a | zfs receive -u "+copied)
	require.Error(t, exec.Command("sh", "-c", "zfs send -w -i @a "+source+"@b | head -c 2000000 | zfs receive -s -u "+copied).Run())
	token := strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "receive_resume_token", copied))
	require.NotEqual(t, "-", token)
	zfsCmd(t, "change-key", "-o", "keylocation=file://"+second, source)
	run(t, "sh", "-c", "zfs send -w "+source+"@a | zfs receive -u "+own)

	rsh, _ := restrictedKey(t, "--allow", "receive="+vault, "--allow", "send="+source, "--append-only")
	of := guids(t, source)
	resume := func(origin string) []byte {
		return transferRequest(streamEnd(`{"dataset":"`+source+`","to":"b","flags":{"raw":true},"token":"`+token+`"}`),
			streamEnd(`{"target":"`+copied+`"`+origin+`,"arrival":{"snapshots":[{"name":"b","guid":"`+of["b"]+`"}],"base":"`+of["a"]+`","raw":true,"resumed":true}}`))
	}
	for _, origin := range []string{`,"origin":"` + own + `@a"`, ""} {
		answer, all := sendHostile(t, rsh, resume(origin))
		require.NotNil(t, answer, all)
		require.Contains(t, answer["error"].(map[string]any)["text"], "another key", all)
		require.NoError(t, exec.Command("zfs", "load-key", "-L", "file://"+first, copied).Run(), "the former key does not open the copy")
		zfsCmd(t, "unload-key", copied)
	}
	rsh, _ = restrictedKey(t, "--allow", "receive-rekey="+vault, "--allow", "send="+source, "--append-only")
	answer, all := sendHostile(t, rsh, resume(""))
	require.Contains(t, answer, "body", all)
	require.NoError(t, exec.Command("zfs", "load-key", "-L", "file://"+second, copied).Run(), "the new key does not open the copy")
}
