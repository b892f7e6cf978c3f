package document

import (
	"errors"
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
	if text := err.Error(); len(text) > maxMessage { // it shows a value that nobody meant
		err = errors.New(strings.ToValidUTF8(text[:maxMessage], "") + "…")
	}
	if at == nil || at.Position == nil {
		return fmt.Errorf("%s:1:1: %w", d.name, err)
	}
	p := at.Position
	if d.secret {
		return fmt.Errorf("%s:%d:%d: %w", d.name, p.Line, p.Column, err)
	}
	return fmt.Errorf("%s:%d:%d: %w\n%s", d.name, p.Line, p.Column, err, d.excerpt(p.Line, p.Column))
}

// excerpt shows a place with up to three lines before and after. It has
// go-yaml's form, whose own prints tokens rather than the source: a null that
// nobody wrote, and the caret below a later line where a token goes on.
func (d *Document) excerpt(line, column int) string {
	var b strings.Builder
	lines := strings.Split(strings.TrimRight(d.source, "\n"), "\n")
	from := max(0, column-maxShown*3/4) // of a long line, the part around the caret
	for i := max(1, line-3); i <= min(line+3, len(lines)); i++ {
		mark := ' '
		if i == line {
			mark = '>'
		}
		head := fmt.Sprintf("%c %2d | ", mark, i)
		shown := []rune(lines[i-1])
		shown = shown[min(from, len(shown)):min(from+maxShown, len(shown))]
		b.WriteString(head + string(shown) + "\n")
		if i == line {
			before := head + string(shown[:min(column-1-from, len(shown))])
			b.WriteString(strings.Map(blank, before) + "^\n")
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

const (
	maxShown   = 200 // characters of a line
	maxMessage = 500 // bytes of what is said of it
)

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

// show is what stands there, for an error that goes on with what is wanted.
func (d *Document) show(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode:
		return "is a mapping"
	case *ast.SequenceNode:
		return "is a list"
	case *ast.NullNode:
		return "is empty"
	}
	if d.secret {
		return "is something else"
	}
	switch n := n.(type) {
	case *ast.StringNode:
		return strconv.Quote(n.Value)
	case *ast.LiteralNode:
		return strconv.Quote(n.Value.Value)
	}
	return n.GetToken().Value
}

// quoted is a word of the file after a space, or nothing where it may be secret.
func (d *Document) quoted(word string) string {
	if d.secret {
		return ""
	}
	return " " + strconv.Quote(word)
}
