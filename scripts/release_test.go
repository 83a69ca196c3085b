package scripts_test

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// run runs a command in a directory without the user's git configuration.
func run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func mustRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := run(t, dir, args...)
	require.NoError(t, err, "%v\n%s", args, out)
	return out
}

// repository creates a git repository with the files of this one. Its changelog has a section
// for version 0.99.0.
func repository(t *testing.T) string {
	t.Helper()
	files, err := exec.CommandContext(t.Context(), "git", "-C", "..", "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		t.Skip("needs a git repository")
	}
	dir := filepath.Join(t.TempDir(), "a clone")
	for name := range strings.Lines(string(files)) {
		name = strings.TrimSpace(name)
		info, err := os.Stat(filepath.Join("..", name))
		if os.IsNotExist(err) {
			continue // deleted but not committed
		}
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join("..", name)) // read by this process so that go test notices changes
		require.NoError(t, err)
		if name == "CHANGELOG.md" {
			text = []byte(strings.Replace(string(text), "\n## ", "\n## 0.99.0\n\n- It is new.\n\n## ", 1))
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, info.Mode()))
	}
	mustRun(t, dir, "git", "init", "-q")
	mustRun(t, dir, "git", "add", "-A")
	mustRun(t, dir, "git", "commit", "-qm", "a release")
	return dir
}

// TestReleaseRefuses expects scripts/release to refuse an impossible release before it builds
// anything, and to print a remedy.
func TestReleaseRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		version, prepare, says string
	}{
		"untracked file":       {"0.99.0", "echo >new", "release: not everything here is committed: new\nhint: git commit, or git clean, then again"},
		"modified file":        {"0.99.0", "echo >>README.md", "release: not everything here is committed: README.md\nhint: git commit, or git clean, then again"},
		"no changelog section": {"0.98.0", "", "release: CHANGELOG.md has no section 0.98.0\nhint: rename Unreleased there: ## 0.98.0; commit"},
		"tag on other commit":  {"0.99.0", "git tag v0.99.0; git commit -q --allow-empty -m more", "release: v0.99.0 is another commit\nhint: git checkout v0.99.0"},
		"invalid version":      {"v9", "", "release: v9 is no version\nhint: write it as 1.2.3 or 1.2.3-rc.1"},
		"directory not empty":  {"0.99.0", "mkdir dist dist/0.99.0 dist/0.99.0/x", "is not empty\nhint: rm -r "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := repository(t)
			mustRun(t, dir, "bash", "-ec", tt.prepare)
			out, err := run(t, dir, "scripts/release", tt.version)
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 3, exit.ExitCode(), out)
			require.Contains(t, out, tt.says)
			made, _ := filepath.Glob(dir + "/dist/*/zxfer*")
			require.Empty(t, made)
		})
	}
}

// needsTools skips a test that builds zxfer for two architectures and the documentation, at
// the quick level or if a tool is missing.
func needsTools(t *testing.T, more ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: builds zxfer for two architectures")
	}
	for _, name := range append(more, "zstd", "hugo") {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs " + name)
		}
	}
}

// TestReleaseTree checks the files that every package of this architecture installs.
func TestReleaseTree(t *testing.T) {
	t.Parallel()
	needsTools(t)
	dir := t.TempDir()
	mustRun(t, "..", "scripts/release", "--tree", "0.99.0", dir)
	machines := map[string][2]elf.Machine{"amd64": {elf.EM_X86_64, elf.EM_AARCH64}, "arm64": {elf.EM_AARCH64, elf.EM_X86_64}}
	requirePrograms(t, dir+"/usr/bin", dir+"/usr/lib/zxfer", machines[runtime.GOARCH])
	requireManPages(t, dir+"/usr/share/man")
	require.Contains(t, mustRun(t, "/", dir+"/usr/bin/zxfer", "version"), "zxfer 0.99.0")
	require.FileExists(t, dir+"/usr/share/doc/zxfer/examples/replicate.toml")
	require.FileExists(t, dir+"/usr/share/doc/zxfer/html/docs/tutorial.html")
}

// TestReleaseIsSigned signs files with the names of release files, using a new key. It
// verifies the signatures with gpg.
func TestReleaseIsSigned(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("needs gpg")
	}
	dir, home := t.TempDir(), t.TempDir()
	gpg := func(args ...string) { mustRun(t, dir, append([]string{"env", "GNUPGHOME=" + home}, args...)...) }
	t.Cleanup(func() { _, _ = run(t, dir, "gpgconf", "--homedir", home, "--kill", "all") })
	gpg("gpg", "--batch", "--passphrase", "", "--quick-gen-key", "test@example.org", "default", "default", "never")
	require.NoError(t, os.Mkdir(dir+"/repodata", 0o755))
	for _, name := range []string{"Release", "SHA256SUMS", "repodata/repomd.xml"} {
		require.NoError(t, os.WriteFile(dir+"/"+name, []byte(name+"\n"), 0o600))
	}
	script, err := filepath.Abs("release")
	require.NoError(t, err)
	gpg(script, "--sign", "test@example.org", dir)
	gpg("gpg", "--output", "plain", "--decrypt", "InRelease")
	plain, err := os.ReadFile(dir + "/plain")
	require.NoError(t, err)
	require.Equal(t, "Release\n", string(plain))
	for _, name := range []string{"SHA256SUMS", "repodata/repomd.xml"} {
		gpg("gpg", "--verify", name+".asc", name)
	}
	key, err := os.ReadFile(dir + "/zxfer.asc")
	require.NoError(t, err)
	require.Contains(t, string(key), "BEGIN PGP PUBLIC KEY BLOCK")
}

// TestRelease makes a release twice, the second time in another directory, with another umask
// and time zone. It expects identical files.
func TestRelease(t *testing.T) {
	t.Parallel()
	if !testenv.Long() {
		t.Skip("only at the long level: builds zxfer four times, and the programs that make packages")
	}
	needsTools(t, "apt-ftparchive", "createrepo_c")
	one := repository(t)
	mustRun(t, one, "scripts/release", "0.99.0")
	dist := one + "/dist/0.99.0"
	mustRun(t, dist, "sha256sum", "--quiet", "-c", "SHA256SUMS")
	sums, err := os.ReadFile(dist + "/SHA256SUMS")
	require.NoError(t, err)
	other := t.TempDir() + "/clone"
	mustRun(t, "/", "git", "clone", "-q", one, other)
	mustRun(t, other, "bash", "-ec", "umask 077; TZ=Asia/Tokyo LC_ALL=C.UTF-8 GOFLAGS=-count=1 scripts/release 0.99.0 dist/0.99.0")
	again, err := os.ReadFile(other + "/dist/0.99.0/SHA256SUMS")
	require.NoError(t, err)
	require.Equal(t, string(sums), string(again))
	for _, name := range []string{
		"zxfer_0.99.0_amd64.deb", "zxfer_0.99.0_arm64.deb", "zxfer-0.99.0-1.x86_64.rpm", "zxfer-0.99.0-1.aarch64.rpm",
		"zxfer-0.99.0-linux-amd64.tar.gz", "zxfer-0.99.0-linux-arm64.tar.gz", "zxfer-0.99.0-linux-amd64.cdx.json",
		"zxfer-0.99.0-linux-arm64.cdx.json", "zxfer-0.99.0-source.tar.gz", "zxfer-0.99.0-notes.md", "Packages.gz", " Release\n",
		"repodata/repomd.xml",
	} {
		require.Contains(t, string(sums), name)
	}
	notes, err := os.ReadFile(dist + "/zxfer-0.99.0-notes.md")
	require.NoError(t, err)
	require.Equal(t, "- It is new.", strings.TrimSpace(string(notes)))
	for arch, machines := range map[string][2]elf.Machine{
		"amd64": {elf.EM_X86_64, elf.EM_AARCH64}, "arm64": {elf.EM_AARCH64, elf.EM_X86_64},
	} {
		requirePackages(t, dist, arch, machines)
	}
}

// requirePackages checks the contents of the packages of one architecture.
func requirePackages(t *testing.T, dist, arch string, machines [2]elf.Machine) {
	t.Helper()
	deb, tarball := t.TempDir(), t.TempDir()
	mustRun(t, dist, "dpkg-deb", "-x", "zxfer_0.99.0_"+arch+".deb", deb)
	mustRun(t, dist, "tar", "-xzf", "zxfer-0.99.0-linux-"+arch+".tar.gz", "--strip-components=1", "-C", tarball)
	requirePrograms(t, deb+"/usr/bin", deb+"/usr/lib/zxfer", machines)
	requirePrograms(t, tarball+"/bin", tarball+"/bin", machines)
	requireManPages(t, deb+"/usr/share/man")
	requireManPages(t, tarball+"/share/man")
	copyright, err := os.ReadFile(deb + "/usr/share/doc/zxfer/copyright")
	require.NoError(t, err)
	require.Contains(t, string(copyright), "github.com/klauspost/compress v")
	var bom struct {
		Components []struct{ Name string }
	}
	text, err := os.ReadFile(dist + "/zxfer-0.99.0-linux-" + arch + ".cdx.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &bom))
	require.Greater(t, len(bom.Components), 10)
	if arch == runtime.GOARCH {
		require.Contains(t, mustRun(t, "/", deb+"/usr/bin/zxfer", "version"), "zxfer 0.99.0, commit ")
		require.FileExists(t, deb+"/usr/share/doc/zxfer/examples/replicate.toml")
	}
}

// requirePrograms requires a zxfer for machines[0] in bin, and a compressed one for
// machines[1] in lib.
func requirePrograms(t *testing.T, bin, lib string, machines [2]elf.Machine) {
	t.Helper()
	require.Equal(t, machines[0], machine(t, bin+"/zxfer"))
	others, err := filepath.Glob(lib + "/zxfer-linux-*.zst")
	require.NoError(t, err)
	require.Len(t, others, 1)
	plain := t.TempDir() + "/plain"
	unpack(t, others[0], plain)
	require.Equal(t, machines[1], machine(t, plain))
}

// requireManPages requires man pages for every verb, for topics and for the job file.
func requireManPages(t *testing.T, dir string) {
	t.Helper()
	pages, err := filepath.Glob("../docs/reference/cli/zxfer*.md")
	require.NoError(t, err)
	require.Greater(t, len(pages), 20)
	for _, page := range pages {
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(page), ".md"), "_", "-")
		found, err := filepath.Glob(dir + "/man[17]/" + name + ".[17].gz")
		require.NoError(t, err)
		require.Len(t, found, 1, name)
	}
	require.FileExists(t, dir+"/man1/zxfer-send.1.gz")
	require.FileExists(t, dir+"/man7/zxfer-transport.7.gz")
	require.FileExists(t, dir+"/man5/zxfer-replicate.toml.5.gz")
}

func machine(t *testing.T, path string) elf.Machine {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	return f.Machine
}

func unpack(t *testing.T, from, to string) {
	t.Helper()
	packed, err := os.ReadFile(from)
	require.NoError(t, err)
	d, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer d.Close()
	plain, err := d.DecodeAll(packed, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, plain, 0o600))
}
