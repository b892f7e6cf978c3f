// Package document reads YAML files that people write, strictly, and says where
// in the file a mistake is. Rules files and limits of Envoy's rate limit service
// are read with it; values.go has the kinds of values, excerpt.go the errors,
// bounds.go what is too much.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// aliased is how many more values than bytes a file may have. Aliases are counted
// at each use: by them a few lines of YAML can stand for any number of values.
const aliased = 10_000

// Document is a YAML file while it is read. Walking the syntax tree ourselves,
// rather than decoding into structs, is what keeps every value's place, refuses
// what a decoder lets through (1.5 as 1, 0100 as 64, a second document), and
// words every error for those who write the file.
type Document struct {
	name    string
	source  string
	places  map[string]*token.Token // field, as in rules[0].windows[1].per → where it stands
	anchors map[string]ast.Node     // &name → what it names
	left    int                     // how many more values may come
	secret  bool                    // errors show nothing of the file
}

// Setter takes in the value of a field, whose name from the top is at.
type Setter func(n ast.Node, at string) error

// Field is one that a mapping may have, or must.
type Field struct {
	Name string
	Need bool
	Set  Setter
}

// Whether a mapping must have a field.
const (
	Needed   = true
	Optional = false
)

// Read parses data and lets top take in the body of its one document. Errors
// begin with NAME:LINE:COLUMN and show the place. holds says what an empty file
// should have had.
func Read(name string, data []byte, holds string, top func(*Document) Setter) (*Document, error) {
	return read(&Document{name: name}, data, holds, top)
}

// ReadSecret is Read for a file that holds secrets: its errors say where and what
// is wanted, and show nothing of what is there, as a slip can put a secret anywhere.
func ReadSecret(name string, data []byte, holds string, top func(*Document) Setter) (*Document, error) {
	return read(&Document{name: name, secret: true}, data, holds, top)
}

func read(d *Document, data []byte, holds string, top func(*Document) Setter) (*Document, error) {
	// Windows editors write both; go-yaml miscounts the lines after a CRLF.
	data = bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	d.source, d.places, d.anchors, d.left = string(data), map[string]*token.Token{}, map[string]ast.Node{}, len(data)+aliased
	if len(data) > MaxBytes {
		return nil, d.errorf(nil, "the file is too large: want at most %d bytes", MaxBytes)
	}
	tokens := lexer.Tokenize(d.source)
	if err := d.bounds(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, d.syntax(err)
	}
	body, err := d.only(file, holds)
	if err != nil {
		return nil, err
	}
	return d, d.visit(body, "", top(d))
}

// Mapping takes these fields and no others; a null is as good as no field.
func (d *Document) Mapping(fields ...Field) Setter {
	var names, need []string
	for _, f := range fields {
		names = append(names, f.Name)
		if f.Need {
			need = append(need, f.Name)
		}
	}
	want := strings.Join(names, ", ")
	return func(n ast.Node, at string) error {
		m, ok := n.(*ast.MappingNode)
		if !ok {
			return d.errorf(start(n), "%s%s: want a mapping of %s", label(at), d.show(n), want)
		}
		given := make([]bool, len(fields))
		for _, v := range m.Values {
			key := v.Key.GetToken()
			i := slices.Index(names, key.Value)
			if i < 0 {
				return d.errorf(key, "unknown field%s: want %s", d.quoted(key.Value), want)
			}
			if _, null := v.Value.(*ast.NullNode); null {
				continue
			}
			given[i] = true
			if err := d.visit(v.Value, strings.TrimPrefix(at+"."+key.Value, "."), fields[i].Set); err != nil {
				return err
			}
		}
		for i, f := range fields {
			if f.Need && !given[i] {
				return d.errorf(start(n), "%s is missing: want at least %s", f.Name, strings.Join(need, ", "))
			}
		}
		return nil
	}
}

// List hands each element of a list to element.
func (d *Document) List(element Setter) Setter {
	return func(n ast.Node, at string) error {
		s, ok := n.(*ast.SequenceNode)
		if !ok {
			return d.errorf(start(n), "%s%s: want a list", label(at), d.show(n))
		}
		for i, v := range s.Values {
			if err := d.visit(v, fmt.Sprintf("%s[%d]", at, i), element); err != nil {
				return err
			}
		}
		return nil
	}
}

// visit notes where the node stands and hands it on.
func (d *Document) visit(n ast.Node, at string, set Setter) error {
	n, err := d.resolve(n, at)
	if err != nil {
		return err
	}
	if d.left--; d.left < 0 {
		return d.errorf(start(n), "more than %d values, aliases counted at each use", len(d.source)+aliased)
	}
	d.places[at] = start(n)
	return set(n, at)
}

// resolve goes through anchors and aliases to the value, which stands where
// the anchor does. What it stores is resolved, so no alias leads in a circle.
func (d *Document) resolve(n ast.Node, at string) (ast.Node, error) {
	switch v := n.(type) {
	case *ast.AnchorNode:
		named, err := d.resolve(v.Value, at)
		if err == nil {
			d.anchors[v.Name.GetToken().Value] = named
		}
		return named, err
	case *ast.AliasNode:
		name := v.Value.GetToken().Value
		if named := d.anchors[name]; named != nil {
			return named, nil
		}
		if d.secret {
			return nil, d.errorf(v.Start, `%stext that begins with * needs quotes`, label(at))
		}
		return nil, d.errorf(v.Start, `%s*%s: want a name given before with &; text that begins with * needs quotes: "*%s"`, label(at), name, name)
	}
	return n, nil
}

// only is the body of the file's one document.
func (d *Document) only(file *ast.File, holds string) (ast.Node, error) {
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && body != nil {
			return nil, d.errorf(start(doc.Body), "a second document: want one in a file")
		}
		if doc.Body != nil {
			body = doc.Body
		}
	}
	if body == nil {
		return nil, d.errorf(nil, "the file is empty: want %s", holds)
	}
	return body, nil
}

func (d *Document) syntax(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return d.errorf(nil, "%w", err)
	}
	if d.secret { // go-yaml's words quote the file
		return d.errorf(e.GetToken(), "it is no YAML, or has a field twice (text that begins with * & ! %% @ ` or has a colon needs quotes)")
	}
	if tk := e.GetToken(); tk != nil && tk.Type == token.AliasType {
		return d.errorf(tk, `%s: text that begins with * needs quotes: "*"`, e.GetMessage())
	}
	return d.errorf(e.GetToken(), "%s", e.GetMessage())
}
