package document

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/streamcounter/streamcounter/internal/english"
)

// ErrorAt returns the error of a field that is wrong. field is its name from the top, as in rules[0].match.
func (d *Document) ErrorAt(field, format string, args ...any) error {
	return d.Errorf(d.places[field], format, args...)
}

// Line returns the line of a field, 0 if the file does not have it.
func (d *Document) Line(field string) int {
	if n := d.places[field]; n != nil {
		return n.Line
	}
	return 0
}

// Errorf returns the error of a node that is wrong. It begins with the node's place, or with 1:1 for a node without
// one.
func (d *Document) Errorf(at *Node, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if text := err.Error(); len(text) > maxMessage { // it has a very long value of the file
		err = errors.New(strings.ToValidUTF8(text[:maxMessage], "") + "…")
	}
	switch {
	case at == nil || at.Line == 0:
		return fmt.Errorf("%s:1:1: %w", d.name, err)
	case d.secret:
		return fmt.Errorf("%s:%d:%d: %w", d.name, at.Line, at.Column, err)
	}
	return fmt.Errorf("%s:%d:%d: %w\n%s", d.name, at.Line, at.Column, err, d.excerpt(at.Line, at.Column))
}

// lines returns the lines of the file, without line ends.
func (d *Document) lines() []string {
	return strings.Split(strings.TrimRight(strings.ReplaceAll(d.source, "\r\n", "\n"), "\n"), "\n")
}

// excerpt returns a place with up to three lines before and after it.
func (d *Document) excerpt(line, column int) string {
	var b strings.Builder
	lines := d.lines()
	from := max(0, column-maxShown*3/4) // only the part of a long line around the caret
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
	maxMessage = 500 // bytes of the message
)

// blank keeps tabs, so that a caret is below its character.
func blank(c rune) rune {
	if c == '\t' {
		return c
	}
	return ' '
}

// label returns the name of a field for an error, without the path to it: per, alerts[1].
func label(at string) string {
	if at == "" {
		return ""
	}
	return at[strings.LastIndexByte(at, '.')+1:] + " "
}

// show returns what a node is, for an error that continues with what is wanted.
func (d *Document) show(n *Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "is a mapping"
	case n.Kind == yaml.SequenceNode:
		return "is a list"
	case n.Tag == tagNull:
		return "is empty"
	case d.secret && (n.Tag != tagWhole || len(n.Value) > 6): // a shorter number is no secret
		return "is something else"
	case n.Tag == tagText:
		return strconv.Quote(n.Value)
	}
	return n.Value
}

// Quoted returns a space and a word of the file in quotes, or nothing if it may be secret. A word that is mistyped for
// a wanted one is no secret.
func (d *Document) Quoted(word string, wanted ...string) string {
	if d.secret && english.Nearest(word, wanted) == "" {
		return ""
	}
	return " " + strconv.Quote(word)
}
