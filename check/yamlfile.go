package check

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// yamlFile is a small configuration file while it is read: go-yaml decodes it
// strictly, and keeps the place of each value for errors of sense. An error says
// NAME:LINE:COLUMN and what is wanted, and shows nothing of the file: it may
// hold secrets, and a mistake can put one anywhere.
type yamlFile struct{ name string }

// text and number are values with their places; at is nil where there is none.
type (
	text struct {
		value string
		at    *token.Token
	}
	number struct {
		value int
		at    *token.Token
	}
)

// errPlaced is an error at a place.
type errPlaced struct {
	at   *token.Token
	want string
}

func (e *errPlaced) Error() string { return e.want }

// UnmarshalYAML takes numbers and truths as they are written, as YAML's users expect.
func (t *text) UnmarshalYAML(n ast.Node) error {
	t.at = n.GetToken()
	switch n := n.(type) {
	case *ast.StringNode:
		t.value = n.Value
	case *ast.LiteralNode:
		t.value = n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		t.value = n.GetToken().Value
	default:
		return &errPlaced{t.at, "want text"}
	}
	return nil
}

// UnmarshalYAML takes decimals alone: YAML would read 010 as 8 and 1.5 as 1.
func (i *number) UnmarshalYAML(n ast.Node) error {
	i.at = n.GetToken()
	var err error
	if i.value, err = strconv.Atoi(i.at.Value); err != nil || strconv.Itoa(i.value) != i.at.Value {
		return &errPlaced{i.at, "want a whole number"}
	}
	return nil
}

// decode reads the one document of the file. want lists the fields that there
// are, for who wrote another.
func (f yamlFile) decode(data []byte, into any, want string) (err error) {
	// A file that go-yaml stumbles over must not end a process that reloads it.
	defer func() {
		if recover() != nil {
			err = f.errorf(nil, "it cannot be read: want %s", want)
		}
	}()
	// Windows editors write both; go-yaml miscounts the lines after a CRLF.
	data = bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return f.worded(err, want)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && body != nil {
			return f.errorf(doc.Body.GetToken(), "a second document: want one in a file")
		}
		if doc.Body != nil {
			body = doc.Body
		}
	}
	if body == nil {
		return f.errorf(nil, "the file is empty: want %s", want)
	}
	var found plainOnly
	if ast.Walk(&found, body); found.at != nil {
		return f.errorf(found.at, "an anchor, alias or tag: want plain values (text that begins with & * or ! needs quotes)")
	}
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(into); err != nil {
		return f.worded(err, want)
	}
	return nil
}

// plainOnly finds what makes one value stand for another: nobody needs it here,
// and go-yaml 1.19 panics on a list that holds itself.
type plainOnly struct{ at *token.Token }

func (p *plainOnly) Visit(n ast.Node) ast.Visitor {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		if p.at == nil {
			p.at = n.GetToken()
		}
		return nil
	}
	return p
}

// worded says of go-yaml's errors where and of which kind, in our words: its own quote the file.
func (f yamlFile) worded(err error, want string) error {
	var ours *errPlaced
	var unknown *yaml.UnknownFieldError
	var kind *yaml.TypeError
	var node *yaml.UnexpectedNodeTypeError
	var placed yaml.Error
	switch {
	case errors.As(err, &ours):
		return f.errorf(ours.at, "%s", ours.want)
	case errors.As(err, &unknown):
		return f.errorf(unknown.GetToken(), "unknown field: want %s", want)
	case errors.As(err, &kind), errors.As(err, &node):
		errors.As(err, &placed)
		return f.errorf(placed.GetToken(), "a value of another kind: want %s", want)
	case errors.As(err, &placed) && strings.Contains(placed.GetMessage(), "already defined"):
		return f.errorf(placed.GetToken(), "the field stands there twice")
	case errors.As(err, &placed):
		return f.errorf(placed.GetToken(), "it is no YAML that can be read here (text that begins with * & ! %% @ ` or has a colon needs quotes)")
	}
	return f.errorf(nil, "it cannot be read: want %s", want)
}

// errorf puts the place before an error; without one it is the file's first line.
func (f yamlFile) errorf(at *token.Token, format string, args ...any) error {
	line, column := 1, 1
	if at != nil && at.Position != nil {
		line, column = at.Position.Line, at.Position.Column
	}
	return fmt.Errorf("%s:%d:%d: %w", f.name, line, column, fmt.Errorf(format, args...))
}

// oneOf words a list of names for an error.
func oneOf[S ~string](names []S) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	return strings.Join(list, ", ")
}
