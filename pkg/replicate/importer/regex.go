package importer

import (
	"regexp/syntax"
	"strings"
)

// maxGlobs is how many shell patterns one regular expression may become.
const maxGlobs = 32

// globs are the shell patterns that together match the strings in which a
// regular expression finds something; false where there are none that match
// exactly these. The patterns match whole strings without "/": begin and end
// of the expression are filled up with "*".
func globs(re string) ([]string, bool) {
	parsed, err := syntax.Parse(re, syntax.Perl)
	if err != nil {
		return nil, false
	}
	alternatives, ok := globOf(parsed.Simplify())
	if !ok {
		return nil, false
	}
	var out []string
	for _, a := range alternatives {
		if !strings.HasPrefix(a, begin) {
			a = "*" + a
		}
		if !strings.HasSuffix(a, end) {
			a += "*"
		}
		a = strings.TrimSuffix(strings.TrimPrefix(a, begin), end)
		if strings.Contains(a, begin) || strings.Contains(a, end) {
			return nil, false // an anchor in the middle
		}
		for strings.Contains(a, "**") && !strings.Contains(a, `\`) {
			a = strings.ReplaceAll(a, "**", "*")
		}
		if a == "" {
			return nil, false // only the empty string
		}
		out = append(out, a)
	}
	return out, true
}

// Marks of an expression's anchors, while it is put together: no name of a
// dataset or snapshot holds them.
const begin, end = "\x01", "\x02"

func globOf(re *syntax.Regexp) ([]string, bool) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return []string{""}, true
	case syntax.OpLiteral:
		text := string(re.Rune)
		if re.Flags&syntax.FoldCase != 0 || strings.Contains(text, begin) || strings.Contains(text, end) {
			return nil, false
		}
		return []string{literal(text)}, true
	case syntax.OpBeginText, syntax.OpBeginLine:
		return []string{begin}, true
	case syntax.OpEndText, syntax.OpEndLine:
		return []string{end}, true
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return []string{"?"}, true
	case syntax.OpCharClass:
		return class(re.Rune)
	case syntax.OpCapture:
		return globOf(re.Sub[0])
	case syntax.OpStar, syntax.OpPlus:
		switch re.Sub[0].Op {
		case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
			if re.Op == syntax.OpPlus {
				return []string{"?*"}, true
			}
			return []string{"*"}, true
		}
		return nil, false
	case syntax.OpQuest:
		sub, ok := globOf(re.Sub[0])
		return append(sub, ""), ok
	case syntax.OpAlternate:
		var out []string
		for _, s := range re.Sub {
			sub, ok := globOf(s)
			if !ok {
				return nil, false
			}
			out = append(out, sub...)
		}
		return out, len(out) <= maxGlobs
	case syntax.OpConcat:
		out := []string{""}
		for _, s := range re.Sub {
			sub, ok := globOf(s)
			if !ok || len(out)*len(sub) > maxGlobs {
				return nil, false
			}
			var next []string
			for _, head := range out {
				for _, tail := range sub {
					next = append(next, head+tail)
				}
			}
			out = next
		}
		return out, true
	}
	return nil, false
}

// class makes a shell pattern's class of pairs of runes. Only letters, digits
// and what means nothing in a class go through.
func class(pairs []rune) ([]string, bool) {
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("_.: ", r)
	}
	var b strings.Builder
	b.WriteString("[")
	for i := 0; i+1 < len(pairs); i += 2 {
		if !plain(pairs[i]) || !plain(pairs[i+1]) {
			return nil, false
		}
		b.WriteRune(pairs[i])
		if pairs[i] != pairs[i+1] {
			b.WriteRune('-')
			b.WriteRune(pairs[i+1])
		}
	}
	b.WriteString("]")
	return []string{b.String()}, len(pairs) > 0
}
