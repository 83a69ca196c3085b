package main

import (
	"slices"

	"github.com/spf13/cobra"

	"zxfer/pkg/fault"
)

func newCompletion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long:  "completion prints a script that completes zxfer's verbs and flags in a shell.",
		Example: `  zxfer completion bash > /etc/bash_completion.d/zxfer
  source <(zxfer completion zsh)`,
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
			return root.GenBashCompletionV2(a.stdout, true)
		},
	}
}
