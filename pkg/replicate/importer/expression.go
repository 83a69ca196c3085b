package importer

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// belowSource is a regular expression on names of datasets as one on paths below a
// source, which finds the same; false where it cannot be told that it does, or where
// it finds the source itself.
//
// Either it begins at the first letter with the source's own name, which is then
// left out, or all that it finds is within one part of a name, or begins with the "/"
// before one.
func belowSource(expression, source string) (string, bool) {
	re, err := regexp.Compile(expression)
	if err != nil || re.MatchString(source) {
		return "", false
	}
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return "", false
	}
	parts := []*syntax.Regexp{tree}
	if tree.Op == syntax.OpConcat {
		parts = slices.Clone(tree.Sub)
	}
	begin := ""
	if parts[0].Op == syntax.OpBeginText && len(parts) > 1 {
		text, ok := cutLiteral(parts[1], source+"/")
		if !ok {
			return "", false
		}
		return "^" + text + written(parts[2:]), true
	}
	if text, ok := cutLiteral(parts[0], "/"); ok {
		begin, parts = "(^|/)"+text, parts[1:]
		if strings.Contains(text, "/") {
			return "", false
		}
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		return begin + written(parts), slices.IndexFunc(parts[:n-1], crosses) < 0
	}
	return begin + written(parts), slices.IndexFunc(parts, crosses) < 0
}

// cutLiteral is what follows a text in a literal that begins with it, quoted.
func cutLiteral(re *syntax.Regexp, text string) (string, bool) {
	if re.Op != syntax.OpLiteral || re.Flags&syntax.FoldCase != 0 {
		return "", false
	}
	rest, ok := strings.CutPrefix(string(re.Rune), text)
	return regexp.QuoteMeta(rest), ok
}

// crosses tells whether what an expression finds may have a "/", or depend on what is
// around it.
func crosses(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, '/')
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i] <= '/' && '/' <= re.Rune[i+1] {
				return true
			}
		}
		return false
	case syntax.OpEmptyMatch, syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat, syntax.OpConcat, syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, crosses)
	}
	return true
}

func written(parts []*syntax.Regexp) string {
	var b strings.Builder
	for _, p := range parts {
		s := p.String()
		switch p.Op {
		case syntax.OpAlternate:
			s = "(?:" + s + ")"
		case syntax.OpEndText:
			s = "$"
		}
		b.WriteString(s)
	}
	return b.String()
}
