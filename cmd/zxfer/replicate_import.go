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
	targetConf           string
	syncoid              []string
	overwrite, json      bool
}

func newReplicateImport(a *app) *cobra.Command {
	o := &importOptions{}
	cmd := &cobra.Command{
		Use:   "import [FLAGS] FILE ...",
		Short: "Create a job file from settings of sanoid, syncoid or zrepl",
		Long: `Create a job file from the settings of sanoid, syncoid or zrepl. import prints
the job file, and on standard error a list of settings to complete by hand. It
does not change the other tool.`,
		Annotations: map[string]string{argsTitle: `  FILE  sanoid.conf, zrepl.yml, or a file with syncoid commands; - is standard
        input`},
		Example: `  zxfer replicate import /etc/sanoid/sanoid.conf --target root@backup:vault/web1
      convert policies, and send their datasets to backup
  zxfer replicate import /etc/zrepl/zrepl.yml -o /etc/zxfer/replicate.toml
      convert jobs of zrepl, and write the job file
  crontab -l | zxfer replicate import --from syncoid -
      convert syncoid commands of a crontab`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args)+len(o.syncoid) == 0 {
				return fault.Usagef("zxfer help replicate import", `import requires files ("-" for standard input) or --syncoid`)
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
			options := importer.Options{Target: o.target, Now: a.now()}
			if o.targetConf != "" {
				options.TargetConf = &importer.Input{Name: o.targetConf}
				if options.TargetConf.Text, err = readFile(o.targetConf); err != nil {
					return err
				}
				if len(options.TargetConf.Text) > maxImport {
					return fault.Usagef("", "%s is too large: more than %d bytes", o.targetConf, maxImport)
				}
			}
			r, err := importer.Import(inputs, options)
			if err != nil {
				return err
			}
			return o.write(a, r)
		},
	}
	flagGroup(cmd, "Input", func(f *pflag.FlagSet) {
		f.StringVar(&o.from, "from", "", "read settings of `TOOL`: sanoid, syncoid, zrepl (default automatic)")
		f.StringArrayVar(&o.syncoid, "syncoid", nil, "also convert syncoid command `COMMAND`; repeatable")
	})
	flagGroup(cmd, "Job file", func(f *pflag.FlagSet) {
		f.StringVar(&o.target, "target", "", "send jobs without a target below `[user@]host:DATASET`")
		f.StringVarP(&o.output, "output", "o", "", "write the job file to `FILE` (default standard output)")
		f.StringVar(&o.targetConf, "target-conf", "", "convert retention of copies from the target's sanoid.conf `FILE`")
		f.BoolVar(&o.overwrite, "overwrite", false, overwriteHelp+" (with -o)")
	})
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&o.json, "json", false, jsonHelp)
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
			return nil, fault.Usagef("", "%s is too large: more than %d bytes", in.Name, maxImport)
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
		fmt.Fprintf(a.stderr, "%s: convert by hand: %s%s: %s\n", e.Where, report.Line(e.What), job, report.Line(e.Do))
	}
	where, next := "the job file", "save it as "+defaultJobFile+" (-o), then "
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
		return fault.Refusef("name another file, or add --overwrite", "%s exists", o.output)
	}
	return err
}
