package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/importer"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report"
)

// maxImport is the maximum size of a settings file in bytes.
const maxImport = 16 << 20

// importOptions holds the flags of replicate import.
type importOptions struct {
	from, target, output string
	syncoid              []string
	overwrite, json      bool
}

func newReplicateImport(a *app) *cobra.Command {
	o := &importOptions{}
	cmd := &cobra.Command{
		Use:   "import [FLAGS] FILE ...",
		Short: "Make a job file of the settings of sanoid, syncoid or zrepl",
		Long: `import reads sanoid.conf, zrepl.yml and syncoid command lines (alone, in a
crontab or a script), writes a job file to standard output, or to -o FILE, and
a report to standard error: what is left to be done by hand, and what to do.
"-" is standard input. What means the same here is carried over, everything
else is in the report.

Sections of sanoid.conf, and snap jobs of zrepl, become jobs without a target,
which take and remove snapshots as before; every syncoid command, and every push
or pull job of zrepl, a job that sends. A source or target that is left by hand
is a comment in the job file, and replicate check refuses the job until it is
written. The settings of the other tool, its timers and its snapshots stay as
they are.`,
		Example: `  zxfer replicate import /etc/sanoid/sanoid.conf --target root@backup:vault/web1
  zxfer replicate import --syncoid 'syncoid -r tank nas:vault/tank'
  zxfer replicate import /etc/zrepl/zrepl.yml -o /etc/zxfer/replicate.toml
  crontab -l | zxfer replicate import --from syncoid -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args)+len(o.syncoid) == 0 {
				return fault.Usagef("zxfer help replicate import", `name files, "-" for standard input, or give --syncoid`)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output == "" {
				if err := refuseIneffective(cmd.Flags(), "without -o FILE", "overwrite"); err != nil {
					return err
				}
			}
			inputs, err := o.read(interruptibleReader{cmd.Context(), a.stdin}, args)
			if err != nil {
				return err
			}
			r, err := importer.Import(inputs, importer.Options{Target: o.target, Now: a.now()})
			if err != nil {
				return err
			}
			return o.write(a, r)
		},
	}
	flagGroup(cmd, "What to read", func(f *pflag.FlagSet) {
		f.StringVar(&o.from, "from", "", "`TOOL` that the files are of: sanoid, syncoid, zrepl (default: recognised)")
		f.StringArrayVar(&o.syncoid, "syncoid", nil, "a syncoid `COMMAND`, besides the files; may be repeated")
	})
	flagGroup(cmd, "What to write", func(f *pflag.FlagSet) {
		f.StringVar(&o.target, "target", "", "`[user@]host:DATASET` below which jobs without a target send")
		f.StringVarP(&o.output, "output", "o", "", "write the job file to `FILE`")
		f.BoolVar(&o.overwrite, "overwrite", false, "overwrite the file of -o")
	})
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&o.json, "json", false, "one JSON object with job file and report on stdout")
	})
	return cmd
}

func (o *importOptions) read(stdin io.Reader, files []string) ([]importer.Input, error) {
	var inputs []importer.Input
	for _, name := range files {
		in := importer.Input{Name: name, Kind: importer.Kind(o.from)}
		var err error
		if name == "-" {
			in.Name = "stdin"
			in.Text, err = io.ReadAll(io.LimitReader(stdin, maxImport+1))
		} else {
			in.Text, err = readFile(name)
		}
		if err != nil {
			return nil, err
		}
		if len(in.Text) > maxImport {
			return nil, fault.Usagef("", "%s is longer than settings are: %d bytes are read at most", in.Name, maxImport)
		}
		inputs = append(inputs, in)
	}
	for i, command := range o.syncoid {
		inputs = append(inputs, importer.Input{Name: fmt.Sprintf("--syncoid[%d]", i+1), Kind: importer.Syncoid, Text: []byte(command)})
	}
	return inputs, nil
}

func (o *importOptions) write(a *app, r *importer.Result) error {
	if o.output != "" {
		if err := o.save(r.Text); err != nil {
			return err
		}
	}
	if o.json {
		return writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.import/v2", "jobs": r.Jobs, "file": r.Text, "left": r.Left})
	}
	if o.output == "" {
		if _, err := io.WriteString(a.stdout, r.Text); err != nil {
			return err
		}
	}
	for _, e := range r.Left {
		job := ""
		if e.Job != "" {
			job = " (job " + e.Job + ")"
		}
		fmt.Fprintf(a.stderr, "%s: left by hand: %s%s: %s\n", e.Where, report.Line(e.What), job, report.Line(e.Do))
	}
	where, next := "the job file", "keep it as "+defaultJobFile+" (-o), then "
	if o.output != "" {
		where, next = o.output, ""
	}
	_, err := fmt.Fprintf(a.stderr, "%s in %s; %d left by hand\nnext: %szxfer replicate check%s\n",
		english.Plural(len(r.Jobs), "job", ""), where, len(r.Left), next, configFlag(o.output))
	return err
}

// save writes the job file.
func (o *importOptions) save(text string) error {
	put := statedir.Create
	if o.overwrite {
		put = statedir.Replace
	}
	err := os.MkdirAll(filepath.Dir(o.output), 0o755)
	if err == nil {
		err = put(o.output, []byte(text), 0o644)
	}
	if errors.Is(err, os.ErrExist) {
		return fault.Refusef("name another, or give --overwrite", "%s exists", o.output)
	}
	return err
}
