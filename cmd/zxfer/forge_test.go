package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// form is an issue form of a forge:
// https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests/syntax-for-githubs-form-schema
type form struct {
	Name, Description string
	Labels            []string
	Body              []struct {
		Type, ID    string
		Attributes  struct{ Label, Description, Value, Render string }
		Validations struct{ Required bool }
	}
}

// TestIssueFormsRequestFacts expects valid issue forms. They must ask for facts, and
// zxfer must accept their commands.
func TestIssueFormsRequestFacts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "..", ".github", "ISSUE_TEMPLATE", "*.yml"))
	require.NoError(t, err)
	forms := 0
	for _, name := range files {
		if filepath.Base(name) == "config.yml" {
			continue
		}
		forms++
		raw, err := os.ReadFile(name)
		require.NoError(t, err)
		var f form
		strict := yaml.NewDecoder(bytes.NewReader(raw))
		strict.KnownFields(true)
		require.NoError(t, strict.Decode(&f), name)
		require.NotEmpty(t, f.Name)
		require.NotEmpty(t, f.Description)
		ids, captures := map[string]bool{}, false
		for _, field := range f.Body {
			if field.Type == "markdown" {
				require.NotEmpty(t, field.Attributes.Value, name)
				continue
			}
			require.Equal(t, "textarea", field.Type, name)
			require.NotEmpty(t, field.Attributes.Label, name)
			require.NotEmpty(t, field.ID, name)
			require.False(t, ids[field.ID], "%s: duplicate ID %s", name, field.ID)
			ids[field.ID] = true
			text := strings.ReplaceAll(field.Attributes.Description, "`", "\n")
			for _, words := range commandsOf(text) {
				require.NoError(t, parseCommand(words), "%s: zxfer %s", name, strings.Join(words, " "))
				captures = captures || strings.Contains(strings.Join(words, " "), "doctor") && strings.Contains(strings.Join(words, " "), "--capture")
			}
		}
		require.True(t, captures, "%s does not request a facts file", name)
	}
	require.Positive(t, forms)
}
