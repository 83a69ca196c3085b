package sysinfo

import (
	"io/fs"
	"strings"
)

// Tools lists programs that zxfer and its users can use.
type Tools struct {
	Paths map[string]string // by name, only installed programs
	PyZFS string            // path of pyzfs, Missing, or "" if unknown
	NC    string            // dialect of the first nc in PATH, or ""
}

// Dialects of nc.
const (
	OpenBSD     = "openbsd"
	Traditional = "traditional"
	Ncat        = "ncat"
	BusyBox     = "busybox"
	GNU         = "gnu"
	UnknownNC   = "unknown"
)

func readTools(root fs.FS) Tools {
	t := Tools{Paths: map[string]string{}, PyZFS: line(root, PyZFS)}
	for l := range strings.Lines(text(root, Command("which"))) {
		if name, where, ok := strings.Cut(strings.TrimSpace(l), "\t"); ok {
			t.Paths[name] = where
		}
	}
	if t.Paths["nc"] != "" {
		t.NC = Dialect(text(root, Command("nc-help")))
	}
	return t
}

// Dialect returns the dialect of nc that printed a help text.
func Dialect(help string) string {
	low := strings.ToLower(help)
	switch {
	case strings.Contains(low, "busybox"):
		return BusyBox
	case strings.Contains(low, "openbsd"), strings.Contains(low, "shutdown the network socket after eof on stdin"): // FreeBSD's too
		return OpenBSD
	case strings.Contains(low, "ncat"):
		return Ncat
	case strings.Contains(low, "[v1.10"):
		return Traditional
	case strings.Contains(low, "gnu netcat"):
		return GNU
	}
	return UnknownNC
}

// FindPyZFS returns the path of Python's libzfs_core, or Missing.
func FindPyZFS(root fs.FS) string {
	for _, dir := range []string{"usr", "usr/local"} {
		for _, packages := range []string{"dist-packages", "site-packages"} {
			found, err := fs.Glob(root, dir+"/lib/python3*/"+packages+"/libzfs_core")
			if err == nil && len(found) > 0 {
				return "/" + found[0]
			}
		}
	}
	return Missing
}
