package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// defaultZFS is the OpenZFS version of the guest without --matrix.
const defaultZFS = "2.3"

// versions are all OpenZFS versions that have a guest.
func versions() []string { return []string{defaultZFS, "2.1", "2.4"} }

func zfsPlaces() (places []string) {
	for _, v := range versions() {
		places = append(places, "zfs-"+v)
	}
	return places
}

func validPlace(place string) bool {
	return place == "host" || place == "race" || place == "arm64" || slices.Contains(zfsPlaces(), place)
}

// guestPackage is a package, in addition to cmd/zxfer, with tests that need a guest. Its
// other tests run on the host only.
type guestPackage struct {
	path  string
	tests string // matches the names of tests that run in the guest, all if it is ""
}

// guestPackages returns the packages whose tests need a real OpenZFS kernel, devices that can
// be broken, or a program that only the guest is sure to have, such as every nc.
func guestPackages() []guestPackage {
	return []guestPackage{
		{path: "./pkg/zfs/cli"},
		{path: "./pkg/zfs/zfstest"},
		{"./pkg/device", `^Test(DirectReadsAndWrites|FailedWritesAreReported|FlakeyTarget|FullFileSystem|LVSnapshot|` +
			`ReplacedDevice|SourceAsTarget|TargetIsExclusive|TargetsAreRefused|UnreadableSectors)`},
		{"./pkg/hosts/hoststest", `^Test(Local|Remote|ShellHost)IsAHost$`},
		{"./pkg/replicate/importer", `^TestPackaged`},
		{"./pkg/agentless", `^Test(AbortedReceive|Dialects|FailedReceiveReports|FailedSend|HostLacks|KilledNC|MissingBeats|Noise|ReceiveAfterLocal|` +
			`RunRefuses|Sink|SourceConformance|Unauthenticated|UnsupportedEnds)`},
	}
}

// commandInGuest matches the tests that the last group runs. TestScripts expects
// other output of "zxfer version" where ZFS is. The others need network namespaces or TUN
// devices, which the host may not permit. All other tests run on the host only.
const commandInGuest = `^TestZFS|^TestScripts$/^version$|^Test(BufferRemedies|DelayLine|MTURemedy)`

// A group of tests of the command runs in one guest.
type group struct {
	name, tests string
	tools       []string // names of tools that they use
}

// commandGroups returns the groups, those that take longest first: a part that starts
// last must not be the one that everything waits for. The last group runs all other
// tests that commandInGuest matches.
func commandGroups() []group {
	return []group{
		{name: "hostile", tests: `^TestHostile`},
		{name: "restricted", tests: `^Test(Restricted|ZFS(Agentless|ManyDatasets|Netcat))`},
		{name: "replicate", tests: `^TestZFSReplicate`},
		{name: "devices", tests: `^Test(Dev|ZFSChaos)`},
		{name: "recovery", tests: `^TestZFS(Restore|Drill)`},
		{name: "faults", tests: `^TestZFS(Busy|Interrupt|Killed|LinkCut|NoSpace|StoppedSend|UnauthenticatedClients|UnusableToken)`},
		{name: "heal", tests: `^TestZFSHeal`},
		{
			name: "copies", tests: `^TestZFS(Compare|Fleet|Freeze|Mirror|Promote|Rotate|Switch|Tree)`,
			tools: []string{"databases", "fleet"},
		},
		{name: "command", tools: []string{"arm64"}},
	}
}

// others returns a regular expression of the tests that groups name.
func others(groups []group) string {
	var all []string
	for _, g := range groups {
		if g.tests != "" {
			all = append(all, g.tests)
		}
	}
	return strings.Join(all, "|")
}

// Lanes bound how many parts run side by side.
const (
	hostLane  = "host"  // parts that use every processor: one at a time
	buildLane = "build" // builds of a guest: one at a time
	toolLane  = "tool"  // downloads
	guestLane = "guest" // guests have one processor each
)

// part is one step of a run.
type part struct {
	name    string
	lane    string
	after   []string // names of parts that must have ended
	command []string
	dir     string
	env     []string
	// tests marks a part that writes events of go test -json. Another part fails if its
	// command exits with another code than 0, or if quiet and it prints anything.
	tests bool
	quiet bool
	// place is where its tests can run again: host, race, arm64, zfs-2.3.
	place string
	// label keeps its results apart from those of parts with another label. A test that
	// one part skips and another part with the same label passes counts as passed.
	label string
	// tool marks a part that prepares a directory of programs. If it fails, the tests that
	// need them are skipped.
	tool bool
	// variable is set to the directory for all later parts, unless it is "".
	variable, directory string
	// path is put in front of PATH for all later parts, unless it is "".
	path string
}

const partTimeout = 60 * time.Minute // on a machine of slowness 1

// plan returns the parts of a run.
func (s *suite) plan() []part {
	if s.on != "" {
		return s.planOne()
	}
	parts := s.checks()
	if s.quick {
		return append(parts, part{
			name: "unit tests", lane: hostLane, tests: true, place: "host",
			env: static(), command: []string{"go", "test", "-short", "-vet=off", "-json", "-timeout", s.limit(), "./..."},
		})
	}
	parts = append(s.guestParts(), parts...)
	parts = append(parts, s.tools()...)
	if s.long && os.Geteuid() == 0 {
		parts = append(parts, part{name: "packages", lane: hostLane, command: []string{"scripts/packages"}})
	}
	return append(parts, s.hostTests("./..."), s.raceTests(), s.arm64Tests())
}

// static returns the environment of builds without C. All parts share it except the part
// race: with another environment, Go compiles most packages again.
func static() []string { return []string{"CGO_ENABLED=0"} }

// checks returns the parts that look at the source.
func (s *suite) checks() []part {
	parts := []part{
		{name: "build", lane: hostLane, env: static(), command: []string{"go", "build", "./..."}},
		{name: "gofmt", lane: hostLane, quiet: true, command: []string{"gofmt", "-l", "cmd", "pkg", "scripts"}},
		{name: "vet", lane: hostLane, env: static(), command: []string{"go", "vet", "./..."}},
		{name: "staticcheck", lane: hostLane, env: static(), command: []string{"go", "tool", "staticcheck", "./..."}},
	}
	if _, err := exec.LookPath("g++"); err == nil {
		parts = append(parts, part{name: "prose", lane: hostLane, command: []string{"scripts/prose"}})
	} else {
		s.printf("   prose: not checked, because Vale needs g++ to build\n")
	}
	if s.quick {
		return parts
	}
	return append(parts, part{
		name: "vet for arm64", lane: hostLane, env: append(static(), "GOARCH=arm64"), command: []string{"go", "vet", "./..."},
	})
}

// tools are programs of others that some tests use.
func (s *suite) tools() []part {
	tool := func(name, variable, path string, command ...string) part {
		dir := filepath.Join(s.work, name)
		p := part{name: "tools: " + name, lane: toolLane, tool: true, variable: variable, directory: dir, command: append(command, dir)}
		if path != "" {
			p.path = filepath.Join(dir, path)
		}
		return p
	}
	return []part{
		tool("programs", "", ".", "scripts/programs"),
		tool("databases", "TEST_DATABASES", "bin.host", "scripts/databases"),
		tool("fleet", "TEST_FLEET", "", "scripts/fleet", "tools"),
		tool("arm64", "TEST_ARM64", "", "scripts/arm64", "tools"),
	}
}

func (s *suite) toolNames() (names []string) {
	for _, t := range s.tools() {
		names = append(names, t.name)
	}
	return names
}

func (s *suite) hostTests(packages string, args ...string) part {
	return part{
		name: "host", lane: hostLane, after: s.toolNames(), tests: true, place: "host",
		env:     static(),
		command: append([]string{"go", "test", "-vet=off", "-json", "-timeout", s.limit()}, append(args, packages)...),
	}
}

// raceTests returns the part with the race detector, which makes tests several times
// slower. It runs the quick tests of the packages whose goroutines share memory, and with
// --long all tests. It never runs the long forms, which repeat the same code more often.
func (s *suite) raceTests() part {
	if s.long {
		return s.race([]string{"./..."})
	}
	var packages []string
	for _, name := range racePackages() {
		packages = append(packages, "./pkg/"+name)
	}
	return s.race(packages, "-short", "-skip", "^("+strings.Join(unracedTests(), "|")+")$")
}

// racePackages are the packages below pkg that the part race runs without --long. The test
// of this list names the packages that it leaves out, and why.
func racePackages() []string {
	return []string{
		"agent", "agent/authz", "agentless", "budget", "device", "files", "freeze/guard", "hosts", "job/compare", "job/dev", "job/doctor",
		"job/ends", "job/measure", "job/restore", "job/send", "probe",
		"replicate/fleet", "replicate/notify", "replicate/runner", "report", "report/history", "sshexec", "transfer", "transport/connect", "transport/mux",
		"transport/tcp",
		"zfs", "zfs/cli", "zfs/lzc", "zfs/zfsmem",
	}
}

// unracedTests compute for a long time in one goroutine, or repeat what other tests of
// their package do. Without --long, the race detector does not run them.
func unracedTests() []string {
	return []string{
		"TestStatusMemoryIsBounded", "TestLargestAnswersAreAccepted", "TestNagiosIsBounded",
		"TestLegitimateMessagesFitBudgets", "TestFalseFieldInAnswers", "TestCompression",
		"TestReadSampleIsDeterministic", "TestRunningBinaryIsCopied", "TestLyingHostCostsBoundedMemory",
	}
}

func (s *suite) race(packages []string, args ...string) part {
	return part{
		name: "race", lane: hostLane, after: s.toolNames(), tests: true, place: "race",
		env:     []string{"CGO_ENABLED=1", "ZXFER_TEST_LONG="},
		command: append([]string{"go", "test", "-race", "-vet=off", "-json", "-timeout", s.limit()}, append(args, packages...)...),
	}
}

func (s *suite) arm64Tests() part {
	return part{
		name: "arm64", lane: hostLane, after: []string{"tools: arm64"}, tests: true, place: "arm64", label: "arm64",
		command: []string{"scripts/arm64", "test", filepath.Join(s.work, "arm64")},
	}
}

// guestParts builds the guests and runs the tests with ZFS in them.
func (s *suite) guestParts() []part {
	if s.host {
		return nil
	}
	binary := filepath.Join(s.work, "bin", "zxfer.test")
	parts := []part{{
		name: "test binary", lane: toolLane, env: static(),
		command: []string{"go", "test", "-c", "-o", binary, "./cmd/zxfer"},
	}}
	used := versions()[:1]
	if s.matrix {
		used = versions()
	}
	for _, v := range used {
		parts = append(parts, s.guestBuild(v))
		if os.Getenv("ZXFER_TEST_NATIVE") != "" {
			parts[len(parts)-1].command = []string{"true"}
		}
		groups := commandGroups()
		for _, g := range groups {
			selection := []string{"-test.run", g.tests}
			if g.tests == "" {
				selection = []string{"-test.run", commandInGuest, "-test.skip", others(groups)}
			}
			p := s.inGuest(v, g.name, g.tools)
			p.after = append(p.after, "test binary")
			p.dir = "cmd/zxfer"
			p.command = append([]string{"go", "tool", "test2json", "-t", "-p", "zxfer/cmd/zxfer"}, s.guestRun(v)...)
			p.command = append(p.command, binary, "-test.v=test2json", "-test.timeout", s.limit())
			p.command = append(p.command, selection...)
			parts = append(parts, p)
		}
		for _, g := range guestPackages() {
			p := s.inGuest(v, filepath.Base(g.path), nil)
			p.command = s.guestTest(v, g.tests, g.path)
			parts = append(parts, p)
		}
	}
	return parts
}

func (s *suite) guestBuild(version string) part {
	return part{name: "guest " + version, lane: buildLane, command: []string{"scripts/guest", "build", "--zfs", version}}
}

// inGuest returns a part without a command, for tests in a guest that use some tools.
func (s *suite) inGuest(version, name string, tools []string) part {
	p := part{
		name: "zfs-" + version + " " + name, lane: guestLane, place: "zfs-" + version, tests: true,
		after: []string{"guest " + version},
		env:   append(static(), "ZXFER_GUEST_SHARE="+s.shared()),
	}
	for _, t := range tools {
		p.after = append(p.after, "tools: "+t)
	}
	if version != defaultZFS {
		p.label = "ZFS " + version
	}
	return p
}

// shared returns the directories of the host that guests need.
func (s *suite) shared() string {
	dirs := []string{s.work}
	if own := os.Getenv("ZXFER_GUEST_SHARE"); own != "" {
		dirs = append(dirs, own)
	}
	return strings.Join(dirs, ":")
}

// guestRun returns the command that runs a program in a guest, or nothing if the tests
// use the OpenZFS of this host.
func (s *suite) guestRun(version string) []string {
	if os.Getenv("ZXFER_TEST_NATIVE") != "" {
		return nil
	}
	script, err := filepath.Abs("scripts/guest")
	if err != nil {
		panic(err) // the working directory was deleted
	}
	return []string{script, "run", "--zfs", version, "--timeout", fmt.Sprint(int(s.scale(partTimeout).Seconds()) + 120)}
}

// guestTest returns a go test command of packages, each in a guest of its own.
func (s *suite) guestTest(version, tests string, packages ...string) []string {
	c := []string{"go", "test", "-p", "1", "-vet=off", "-json", "-timeout", s.limit()}
	if run := s.guestRun(version); run != nil {
		c = append(c, "-exec", strings.Join(run, " "))
	}
	if tests != "" {
		c = append(c, "-run", tests)
	}
	return append(c, packages...)
}

// planOne returns the parts of a single run: the tools, and the tests in one place.
func (s *suite) planOne() []part {
	parts := s.tools()
	var args []string
	if s.run != "" {
		args = []string{"-run", s.run}
	}
	switch s.on {
	case "host":
		return append(parts, s.hostTests(s.packages, args...))
	case "race":
		return append(parts, s.race([]string{s.packages}, args...))
	case "arm64":
		p := s.arm64Tests()
		p.command = append(p.command, s.packages)
		if s.run != "" {
			p.command = append(p.command, s.run)
		}
		return append(parts, p)
	}
	version := strings.TrimPrefix(s.on, "zfs-")
	p := s.inGuest(version, s.packages, []string{"databases", "fleet", "arm64"})
	p.command = s.guestTest(version, s.run, s.packages)
	return append(parts, s.guestBuild(version), p)
}

// again returns the command that runs one failed test again.
func (o *options) again(place, pkg, test string) string {
	level := ""
	switch {
	case o.quick:
		c := "go test -short ./" + strings.TrimPrefix(pkg, "zxfer/")
		if test != "" {
			c += " -run '" + exactly(test) + "'"
		}
		return c
	case o.long:
		level = " --long"
	}
	c := "scripts/test" + level + " --on " + place + " ./" + strings.TrimPrefix(pkg, "zxfer/")
	if test != "" {
		c += " '" + exactly(test) + "'"
	}
	return c
}

// exactly returns the -run expression of one test or subtest.
func exactly(test string) string {
	names := strings.Split(test, "/")
	for i, n := range names {
		names[i] = "^" + regexp.QuoteMeta(n) + "$"
	}
	return strings.Join(names, "/")
}

// scale returns d times the slowness of the machine.
func (s *suite) scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.slowness)
}

// limit returns the time limit of a part for go test.
func (s *suite) limit() string { return s.scale(partTimeout).Round(time.Second).String() }
