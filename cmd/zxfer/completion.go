package main

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zxfer/pkg/fault"
)

func newCompletion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long: `completion prints a script with which a shell completes what zxfer takes: verbs,
flags, pools, datasets, snapshots, jobs, checks, and the hosts that ssh knows.
Behind HOST: it asks that host, where ssh needs no password. What takes longer
than half a second is not completed. That of bash needs the package
bash-completion.`,
		Example: `  zxfer completion bash > /etc/bash_completion.d/zxfer
  zxfer completion zsh > /usr/local/share/zsh/site-functions/_zxfer
  zxfer completion fish > /etc/fish/completions/zxfer.fish`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(cmd.ValidArgs, args[0]) {
				return fault.Usagef(helpOf(cmd), "completion takes the name of a shell: bash, zsh or fish")
			}
			return nil
		},
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			}
			return bashCompletion(a.stdout, root)
		},
	}
}

// bashCompletion writes cobra's script for bash, to which "@" is no part of a word
// (COMP_WORDBREAKS has it unless hostcomplete is off): here it is, as ":" is.
func bashCompletion(w io.Writer, root *cobra.Command) error {
	var script strings.Builder
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	_, err := strings.NewReplacer("_init_completion -n =:", "_init_completion -n =:@",
		`_handle_special_char "$cur" :`, `_handle_special_char "$cur" "[${COMP_WORDBREAKS//[^:@]/}]"`).WriteString(w, script.String())
	return err
}
