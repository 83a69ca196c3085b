package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const gpl = `This program is free software: you can redistribute it and/or modify it under the
terms of the GNU General Public License as published by the Free Software Foundation,
either version 3 of the License, or (at your option) any later version.`

func TestThirdPartyIsCurrent(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	want, err := os.ReadFile(filepath.Join(root, "THIRD_PARTY"))
	require.NoError(t, err)
	_, err = os.ReadFile(filepath.Join(root, "go.mod")) // makes go test's cache depend on go.mod
	require.NoError(t, err)
	modules, err := builtIn(root, "./cmd/zxfer")
	require.NoError(t, err)
	var got bytes.Buffer
	require.NoError(t, write(&got, modules))
	require.Equal(t, string(want), got.String(), "THIRD_PARTY is stale: go run ./scripts/licences >THIRD_PARTY")
	require.Contains(t, got.String(), "and the standard library of Go\nBSD-3-Clause\n")
}

func TestLicencesThatAreNotAllowed(t *testing.T) {
	t.Parallel()
	apache, err := os.ReadFile(filepath.Join("..", "..", "LICENSE"))
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"allowed":            {map[string]string{"LICENSE.txt": string(apache), "NOTICE": "Made by somebody."}, ""},
		"another":            {map[string]string{"COPYING": gpl}, "example.org/m: its licence is GPL-3.0-or-later, which is not allowed"},
		"one of two":         {map[string]string{"LICENSE": string(apache), "LICENSE.more": gpl}, "its licence is GPL-3.0-or-later"},
		"allowed and more":   {map[string]string{"LICENSE": gpl + strings.Repeat(" You shall not sell it.", 20)}, "is text of a known licence"},
		"none":               {map[string]string{"README": "Do as you like."}, "no licence in"},
		"nothing of a known": {map[string]string{"LICENCE": "Do as you like."}, "of its LICENCE only 0 % is text of a known licence"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := module{"example.org/m", "v1.0.0", t.TempDir()}
			for file, text := range tt.files {
				require.NoError(t, os.WriteFile(filepath.Join(m.dir, file), []byte(text), 0o600))
			}
			var out bytes.Buffer
			err := write(&out, []module{m})
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			require.Contains(t, out.String(), "example.org/m v1.0.0\nApache-2.0\n")
			require.Contains(t, out.String(), "Made by somebody.")
		})
	}
}
