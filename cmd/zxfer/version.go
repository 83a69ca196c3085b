package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"zxfer/pkg/report"
	"zxfer/pkg/site"
)

// versionReport is what `zxfer version --json` prints. Fields are only ever added.
type versionReport struct {
	Schema   string `json:"schema"` // "zxfer.version/v1"
	Version  string `json:"version"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Revision string `json:"revision,omitempty"` // of the source it was built from
	Modified bool   `json:"modified,omitempty"` // the source was changed since that revision
	ZFS      string `json:"zfs,omitempty"`      // kernel module
	Backend  string `json:"backend,omitempty"`
	Problem  string `json:"problem,omitempty"` // why ZFS or the back end is unknown
}

func newVersion(a *app) *cobra.Command {
	var verbose, asJSON bool
	cmd := &cobra.Command{
		Use:   "version [FLAGS]",
		Short: "Show the version, and with -v what this host has",
		Long: `version shows zxfer's version. With -v also how it was built, the ZFS kernel
module of this host, and whether libzfs_core (through pyzfs) or the zfs command
line is used, and why.`,
		Example: `  zxfer version -v`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := buildReport()
			if verbose || asJSON {
				local := site.NewLocal(buildVersion(), func(string) {})
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
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the build, the ZFS module and the back end")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object, with all of -v")
	return cmd
}

// buildVersion is zxfer's version as the module system or the version control
// system gave it at build time; "devel" where neither did.
func buildVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

func buildReport() versionReport {
	r := versionReport{
		Schema: "zxfer.version/v1", Version: buildVersion(),
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				r.Revision = s.Value
			case "vcs.modified":
				r.Modified = s.Value == "true"
			}
		}
	}
	return r
}

func (r versionReport) text(w io.Writer, verbose bool) error {
	text := fmt.Sprintf("zxfer %s\n", r.Version)
	if verbose {
		text += fmt.Sprintf("go       %s %s/%s\n", r.Go, r.OS, r.Arch)
		if r.Revision != "" {
			text += "source   " + r.Revision
			if r.Modified {
				text += ", modified"
			}
			text += "\n"
		}
		for _, row := range [][2]string{{"zfs", r.ZFS}, {"backend", r.Backend}, {"problem", r.Problem}} {
			if row[1] != "" {
				text += fmt.Sprintf("%-7s  %s\n", row[0], row[1])
			}
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
