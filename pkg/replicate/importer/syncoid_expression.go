package importer

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// belowSource translates a regular expression for dataset names into one for paths below source.
// It returns false if the two may differ, or if the expression matches source itself.
//
// The expression must start with "^" and the source's name, which is then removed. Otherwise every
// match must lie within one component of a name, or start with the "/" before it.
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
		return "^" + text + concat(parts[2:]), true
	}
	if text, ok := cutLiteral(parts[0], "/"); ok {
		begin, parts = "(^|/)"+text, parts[1:]
		if strings.Contains(text, "/") {
			return "", false
		}
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		return begin + concat(parts), slices.IndexFunc(parts[:n-1], mayCross) < 0
	}
	return begin + concat(parts), slices.IndexFunc(parts, mayCross) < 0
}

// cutLiteral returns the quoted rest of a literal after the prefix text.
func cutLiteral(re *syntax.Regexp, text string) (string, bool) {
	if re.Op != syntax.OpLiteral || re.Flags&syntax.FoldCase != 0 {
		return "", false
	}
	rest, ok := strings.CutPrefix(string(re.Rune), text)
	return regexp.QuoteMeta(rest), ok
}

// mayCross reports whether a match may contain "/" or depend on its context.
func mayCross(re *syntax.Regexp) bool {
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
		return slices.ContainsFunc(re.Sub, mayCross)
	}
	return true
}

func concat(parts []*syntax.Regexp) string {
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
