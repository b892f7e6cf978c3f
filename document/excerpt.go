package document

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// ErrorAt says that the field, named from the top as in rules[0].match, is wrong.
func (d *Document) ErrorAt(field, format string, args ...any) error {
	return d.errorf(d.places[field], format, args...)
}

// Errorf says that the node is wrong.
func (d *Document) Errorf(n ast.Node, format string, args ...any) error {
	return d.errorf(start(n), format, args...)
}

// Line is where a field stands, 0 if it does not.
func (d *Document) Line(field string) int {
	if tk := d.places[field]; tk != nil && tk.Position != nil {
		return tk.Position.Line
	}
	return 0
}

func (d *Document) errorf(at *token.Token, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if at == nil || at.Position == nil {
		return fmt.Errorf("%s:1:1: %w", d.name, err)
	}
	p := at.Position
	return fmt.Errorf("%s:%d:%d: %w\n%s", d.name, p.Line, p.Column, err, d.excerpt(p.Line, p.Column))
}

// excerpt shows a place with up to three lines before and after. It has
// go-yaml's form, whose own prints tokens rather than the source: a null that
// nobody wrote, and the caret below a later line where a token goes on.
func (d *Document) excerpt(line, column int) string {
	var b strings.Builder
	lines := strings.Split(strings.TrimRight(d.source, "\n"), "\n")
	for i := max(1, line-3); i <= min(line+3, len(lines)); i++ {
		mark := ' '
		if i == line {
			mark = '>'
		}
		head := fmt.Sprintf("%c %2d | ", mark, i)
		shown := []rune(head + lines[i-1])
		b.WriteString(string(shown) + "\n")
		if i == line {
			before := shown[:min(len(head)+column-1, len(shown))]
			b.WriteString(strings.Map(blank, string(before)) + "^\n")
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// blank keeps tabs, so that a caret stands below its character.
func blank(c rune) rune {
	if c == '\t' {
		return c
	}
	return ' '
}

// start is the token that a node begins with; that of a block mapping is its first key's.
func start(n ast.Node) *token.Token {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return m.Values[0].Key.GetToken()
	}
	return n.GetToken()
}

// label names a field in an error without the way to it: per, alerts[1].
func label(at string) string {
	if at == "" {
		return ""
	}
	return at[strings.LastIndexByte(at, '.')+1:] + " "
}

func show(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode:
		return "is a mapping"
	case *ast.SequenceNode:
		return "is a list"
	case *ast.NullNode:
		return "is empty"
	case *ast.StringNode:
		return strconv.Quote(n.Value)
	case *ast.LiteralNode:
		return strconv.Quote(n.Value.Value)
	}
	return n.GetToken().Value
}
