package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// mutant is one change of one file. Its number is its index plus one.
type mutant struct {
	file      string
	line, col int
	what      string
}

// mutator puts switches for mutants into the text of one file.
type mutator struct {
	fset    *token.FileSet
	info    *types.Info
	name    string
	src     []byte
	mutants *[]mutant
	edits   []edit
	done    map[ast.Expr]bool // conditions that an enclosing condition has treated
}

// edit replaces length bytes at an offset.
type edit struct {
	at, length int
	end        bool // of a node: in front of what starts there
	text       string
}

// mutate returns the text of f with a switch for each mutant. It adds the mutants to
// the list and keeps line numbers.
func (m *mutator) mutate(f *ast.File) []byte {
	m.done = map[ast.Expr]bool{}
	var enclosing []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			enclosing = enclosing[:len(enclosing)-1]
			return true
		}
		if !m.visit(n, enclosing) {
			return false
		}
		enclosing = append(enclosing, n)
		return true
	})
	return m.text()
}

// visit treats one node and reports whether to visit its children.
func (m *mutator) visit(n ast.Node, enclosing []ast.Node) bool {
	switch n := n.(type) {
	case *ast.BlockStmt:
		m.statements(n.List)
	case *ast.CaseClause:
		m.statements(n.Body)
	case *ast.CommClause:
		m.statements(n.Body)
	case *ast.IfStmt:
		m.condition(n.Cond, true, true)
	case *ast.ForStmt:
		if n.Cond != nil {
			m.condition(n.Cond, false, true)
		}
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					m.condition(e, true, true)
				}
			}
		}
	case *ast.ReturnStmt:
		m.results(n, enclosing)
	case *ast.CallExpr:
		return !isMessage(n)
	case *ast.BinaryExpr:
		m.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			m.condition(n, true, true)
		}
	case *ast.GenDecl:
		return n.Tok == token.VAR
	}
	return true
}

// isMessage reports whether a call only makes the text of a message.
func isMessage(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	p, ok := f.X.(*ast.Ident)
	return ok && (p.Name == "fmt" || p.Name == "errors" && f.Sel.Name == "New")
}

// statements adds a mutant without each statement that a function can do without.
func (m *mutator) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); !ok || isNeeded(call) {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || slices.ContainsFunc(s.Lhs, isBlank) {
				continue
			}
		case *ast.IncDecStmt:
		case *ast.BranchStmt:
			if s.Tok != token.BREAK && s.Tok != token.CONTINUE {
				continue
			}
		default:
			continue
		}
		m.wrap(s, fmt.Sprintf("if !m__(%d) { ", m.add(s, "removed: %s", m.snippet(s))), " }")
	}
}

func isBlank(e ast.Expr) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == "_"
}

// isNeeded reports whether the removal of a call shows nothing or does not compile.
func isNeeded(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic"
	case *ast.SelectorExpr:
		return slices.Contains([]string{"Lock", "Unlock", "RLock", "RUnlock"}, f.Sel.Name)
	}
	return false
}

// results adds a mutant for each result that is not constant: its zero value.
func (m *mutator) results(s *ast.ReturnStmt, enclosing []ast.Node) {
	want := m.signature(enclosing).Results()
	if want.Len() != len(s.Results) {
		return
	}
	for i, e := range s.Results {
		is, to := m.info.Types[e], want.At(i).Type()
		switch {
		case is.Value != nil, is.IsNil():
		case isBool(is.Type):
			m.condition(e, true, true)
		case types.Identical(is.Type, to):
			m.wrap(e, fmt.Sprintf("zero__(%d, ", m.add(e, "returns the zero value for %s", m.snippet(e))), ")")
		case types.Identical(to, types.Universe.Lookup("error").Type()):
			m.wrap(e, fmt.Sprintf("zero__[error](%d, ", m.add(e, "returns nil for %s", m.snippet(e))), ")")
		}
	}
}

// signature returns the type of the innermost function.
func (m *mutator) signature(enclosing []ast.Node) *types.Signature {
	for _, n := range slices.Backward(enclosing) {
		switch f := n.(type) {
		case *ast.FuncLit:
			return m.info.TypeOf(f).(*types.Signature)
		case *ast.FuncDecl:
			return m.info.Defs[f.Name].Type().(*types.Signature)
		}
	}
	panic("a return outside of a function")
}

func isBool(t types.Type) bool {
	b, ok := t.(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

// condition adds mutants in which e, or a part of it, is always true or always false.
// Parts are only replaced by the value that makes the other parts decide.
func (m *mutator) condition(e ast.Expr, yes, no bool) {
	is := m.info.Types[e]
	if m.done[e] || is.Value != nil || !isBool(is.Type) {
		return
	}
	m.done[e] = true
	switch x := e.(type) {
	case *ast.ParenExpr:
		m.condition(x.X, yes, no)
		return
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			m.condition(x.X, no, yes)
			return
		}
	case *ast.BinaryExpr:
		switch x.Op {
		case token.LAND:
			m.always(e, false, no)
			m.condition(x.X, true, false)
			m.condition(x.Y, true, false)
			return
		case token.LOR:
			m.always(e, yes, false)
			m.condition(x.X, false, true)
			m.condition(x.Y, false, true)
			return
		}
	}
	m.always(e, yes, no)
}

func (m *mutator) always(e ast.Expr, yes, no bool) {
	prefix, suffix := "", ""
	if yes {
		prefix, suffix = fmt.Sprintf("(m__(%d) || ", m.add(e, "always true: %s", m.snippet(e))), ")"
	}
	if no {
		prefix, suffix = prefix+fmt.Sprintf("(!m__(%d) && ", m.add(e, "always false: %s", m.snippet(e))), suffix+")"
	}
	if prefix != "" {
		m.wrap(e, prefix+"(", ")"+suffix)
	}
}

// operators returns the functions that stand for operators, and the operators of
// their mutants.
func operators() map[token.Token][2]string {
	return map[token.Token][2]string{
		token.LSS: {"less__", "<="}, token.LEQ: {"lessEqual__", "<"}, token.GTR: {"greater__", ">="}, token.GEQ: {"greaterEqual__", ">"},
		token.ADD: {"add__", "-"}, token.SUB: {"subtract__", "+"}, token.MUL: {"multiply__", "/"}, token.QUO: {"divide__", "*"}, token.REM: {"remainder__", "*"},
		token.AND: {"and__", "|"}, token.OR: {"or__", "&"}, token.AND_NOT: {"andNot__", "&"},
	}
}

func (m *mutator) binary(e *ast.BinaryExpr) {
	m.condition(e, true, true)
	other, ok := operators()[e.Op]
	if !ok || m.info.Types[e].Value != nil || !m.isNumber(e.X) || !m.isNumber(e.Y) || m.isSure(e) {
		return
	}
	n := m.add(e, "%s instead of %s: %s", other[1], e.Op, m.snippet(e))
	m.wrap(e, fmt.Sprintf("%s(%d, ", other[0], n), ")")
	m.edits = append(m.edits, edit{m.offset(e.OpPos), len(e.Op.String()), false, ","})
}

func (m *mutator) isNumber(e ast.Expr) bool {
	b, ok := m.info.TypeOf(e).Underlying().(*types.Basic)
	return ok && b.Info()&types.IsNumeric != 0 && b.Info()&types.IsComplex == 0
}

// isSure reports whether e is len(x) > 0 or the like: with >= it is always true, which
// is another mutant.
func (m *mutator) isSure(e *ast.BinaryExpr) bool {
	zero := m.info.Types[e.Y].Value
	if e.Op != token.GTR || zero == nil || zero.ExactString() != "0" {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		b, ok := m.info.TypeOf(e.X).Underlying().(*types.Basic)
		return ok && b.Info()&types.IsUnsigned != 0
	}
	f, ok := call.Fun.(*ast.Ident)
	return ok && f.Name == "len"
}

// add adds a mutant at a node and returns its number.
func (m *mutator) add(n ast.Node, format string, args ...any) int {
	p := m.fset.Position(n.Pos())
	*m.mutants = append(*m.mutants, mutant{m.name, p.Line, p.Column, fmt.Sprintf(format, args...)})
	return len(*m.mutants)
}

func (m *mutator) offset(p token.Pos) int { return m.fset.Position(p).Offset }

// snippet returns the text of a node on one line, cut short.
func (m *mutator) snippet(n ast.Node) string {
	s := strings.Join(strings.Fields(string(m.src[m.offset(n.Pos()):m.offset(n.End())])), " ")
	if r := []rune(s); len(r) > 70 {
		return string(r[:70]) + "..."
	}
	return s
}

func (m *mutator) wrap(n ast.Node, prefix, suffix string) {
	m.edits = append(m.edits, edit{m.offset(n.Pos()), 0, false, prefix}, edit{m.offset(n.End()), 0, true, suffix})
}

// text applies the edits. The visit goes from the outside in: if two nodes end at the same
// offset, the node visited last ends first.
func (m *mutator) text() []byte {
	slices.Reverse(m.edits)
	slices.SortStableFunc(m.edits, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(rank(a), rank(b)))
	})
	for i := 0; i < len(m.edits); { // if two nodes begin at the same offset, the node visited first begins first
		j := i // end of the edits with the same offset and rank
		for j < len(m.edits) && m.edits[j].at == m.edits[i].at && rank(m.edits[j]) == rank(m.edits[i]) {
			j++
		}
		if !m.edits[i].end {
			slices.Reverse(m.edits[i:j])
		}
		i = j
	}
	var out []byte
	from := 0
	for _, e := range m.edits {
		out = append(append(out, m.src[from:e.at]...), e.text...)
		from = e.at + e.length
	}
	return append(out, m.src[from:]...)
}

func rank(e edit) int {
	switch {
	case e.end:
		return 0
	case e.length == 0:
		return 1
	}
	return 2
}
