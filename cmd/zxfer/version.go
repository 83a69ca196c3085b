package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"zxfer/pkg/agent"
	"zxfer/pkg/hosts"
	"zxfer/pkg/report"
	"zxfer/pkg/transport/tcp"
)

// versionReport is the output of `zxfer version --json`. New versions only add fields.
type versionReport struct {
	Schema   string `json:"schema"` // "zxfer.version/v1"
	Version  string `json:"version"`
	Protocol int    `json:"protocol"` // of the agent
	Wire     string `json:"wire"`     // of data connections
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Revision string `json:"revision,omitempty"` // source commit
	Date     string `json:"date,omitempty"`     // of that commit
	Modified bool   `json:"modified,omitempty"` // the source differs from that commit
	ZFS      string `json:"zfs,omitempty"`      // kernel module
	Backend  string `json:"backend,omitempty"`
	Problem  string `json:"problem,omitempty"` // why ZFS or the back end is unknown
}

func newVersion(a *app) *cobra.Command {
	var verbose, asJSON bool
	cmd := &cobra.Command{
		Use:   "version [FLAGS]",
		Short: "Show version and build",
		Long: `Show the version, the commit and the protocol of zxfer. zxfer on another host
must have the same protocol.`,
		Example: `  zxfer version -v
      also show the ZFS kernel module and the back end of this host`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := buildReport()
			if verbose || asJSON {
				local := hosts.NewLocal(buildVersion(), func(string) {})
				defer local.Close()
				f, err := local.Facts(cmd.Context())
				r.ZFS = f.ZFS
				if err != nil {
					r.Problem = err.Error()
				} else {
					r.Backend = local.Backend()
				}
			}
			if asJSON {
				return report.Object(a.stdout, r)
			}
			return r.text(a.stdout, verbose)
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show build, ZFS module and back end")
	cmd.Flags().BoolVar(&asJSON, "json", false, jsonHelp)
	return cmd
}

// release is the version of a build without version control, as from a source package: -ldflags
// "-X main.release=0.9.0". Only the linker sets it.
var release string

// buildVersion returns the version from version control, the module system or the linker, or
// "devel".
func buildVersion() string { return buildReport().Version }

// idLine returns what zxfer reports to the bootstrap script of another zxfer.
func idLine(id string) string { return fmt.Sprintf("%s %s/%d", id, buildVersion(), agent.Protocol) }

// releaseAndProtocol returns what another build must have to replace this one. It returns "" for
// builds that are not releases, which nothing may replace.
func releaseAndProtocol() string { return releaseOf(buildVersion()) }

func releaseOf(version string) string {
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.?[0-9]+)?$`).MatchString(version) {
		return ""
	}
	return fmt.Sprintf("%s/%d", version, agent.Protocol)
}

func buildReport() versionReport {
	if b, ok := debug.ReadBuildInfo(); ok {
		return newVersionReport(b)
	}
	return newVersionReport(&debug.BuildInfo{})
}

func newVersionReport(b *debug.BuildInfo) versionReport {
	r := versionReport{
		Schema: "zxfer.version/v1", Version: strings.TrimPrefix(b.Main.Version, "v"),
		Protocol: agent.Protocol, Wire: tcp.Protocol,
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	if r.Version == "" || r.Version == "(devel)" {
		r.Version = cmp.Or(release, "devel")
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Revision = s.Value
		case "vcs.time":
			r.Date = s.Value
		case "vcs.modified":
			r.Modified = s.Value == "true"
		}
	}
	return r
}

func (r versionReport) text(w io.Writer, verbose bool) error {
	text := r.line()
	if verbose {
		for _, row := range [][2]string{
			{"commit", r.Revision}, {"date", r.Date}, {"wire", r.Wire},
			{"go", fmt.Sprintf("%s %s/%s", r.Go, r.OS, r.Arch)},
			{"zfs", r.ZFS}, {"backend", r.Backend}, {"problem", r.Problem},
		} {
			if row[1] != "" {
				text += fmt.Sprintf("%-7s  %s\n", row[0], row[1])
			}
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

// line returns the version on one line:
//
//	zxfer 0.9.0, commit 0123456789ab of 2026-11-23, protocol 2
func (r versionReport) line() string {
	text := "zxfer " + r.Version
	if r.Revision != "" {
		text += fmt.Sprintf(", commit %.12s", r.Revision)
		if day, _, _ := strings.Cut(r.Date, "T"); day != "" {
			text += " of " + day
		}
		if r.Modified {
			text += ", modified"
		}
	}
	return text + fmt.Sprintf(", protocol %d\n", r.Protocol)
}
