package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/transport"
)

// wayFlags declares the flags of how bytes cross.
func wayFlags(f *pflag.FlagSet, w *transport.Settings, at transport.Place) {
	for _, o := range transport.Options(at) {
		v := o.Value(w)
		flag := f.VarPF(v, o.ID, o.Short, option.Flags(o.Help()))
		if v.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// completeWay completes the words that these flags take.
func completeWay(cmd *cobra.Command, at transport.Place) {
	for _, o := range transport.Options(at) {
		words := make([]string, len(o.Words))
		for i, w := range o.Words {
			words[i] = cobra.CompletionWithDesc(w.Name, option.Flags(w.Meaning))
		}
		if len(words) > 0 {
			completeWords(cmd, o.ID, words...)
		}
	}
}

// checkWay checks how bytes are to cross between two ends.
func checkWay(w *transport.Settings, at transport.Place, source, target endpoint.Endpoint) error {
	if w.Wire != transport.NC && source.Host == target.Host {
		if err := w.RefuseIneffective(transport.OneHost, "where source and target are on one host"); err != nil {
			return err
		}
	}
	for _, err := range w.Check(at) {
		return err
	}
	if w.Wire == transport.NC && (isDevice(source) || isDevice(target)) {
		return fault.Usagef("choose another --wire", "--wire nc moves datasets, not devices")
	}
	return w.CheckHosts(source.Local(), target.Local())
}
