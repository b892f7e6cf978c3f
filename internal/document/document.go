// Package document reads YAML files that people write. It is strict, and its errors
// have the place of a mistake in the file. Rules files, tokens, extractors and the
// limits of Envoy's rate limit service are read with it. Read next: values.go has the
// kinds of values, excerpt.go has the errors.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// Bounds of a file. The parser's time depends only on the size of the file, whatever it contains.
const (
	// MaxBytes is the largest file.
	MaxBytes = 1 << 20
	// MaxEntries is the longest list.
	MaxEntries = 20_000
	// maxDepth is how deep lists and mappings may be nested. Nested descriptors take
	// 2 levels each. An alias inside of the value that it names stops at this depth.
	maxDepth = 40
	// aliased is how many more values than bytes a file may have. Aliases are counted
	// at each use, because with them a few lines of YAML can have any number of values.
	aliased = 10_000
)

// Node is a value of the file and its place.
type Node = yaml.Node

// Document is a YAML file while it is read. It walks the syntax tree instead of
// decoding into structs. So it knows every value's place, refuses values that a
// decoder accepts (1.5 as 1, 0100 as 64, a second document), and its errors are
// written for the people who write the file.
type Document struct {
	name   string
	source string
	places map[string]*Node // field, as in rules[0].windows[1].per → its value and place
	depth  int              // of the value that is being read
	left   int              // how many more values the file may have
	secret bool             // errors show nothing of the file
}

// Setter reads the value of a field; at is the field's name from the top.
type Setter func(n *Node, at string) error

// Field is a field that a mapping may have, or must have.
type Field struct {
	Name string
	Need bool
	Null bool // Set reads a null value too
	Set  Setter
}

// Needed is Field.Need of a field that a mapping must have.
const Needed = true

// Read parses data and reads the body of its one document with top. Errors
// begin with NAME:LINE:COLUMN and show the place. holds says, for the error, what
// an empty file should have had.
func Read(name string, data []byte, holds string, top func(*Document) Setter) (*Document, error) {
	return read(&Document{name: name}, data, holds, top)
}

// ReadSecret is Read for a file with secrets. Its errors say where a mistake is and
// what is wanted, but do not show the file, because a mistake can put a secret anywhere.
func ReadSecret(name string, data []byte, holds string, top func(*Document) Setter) (*Document, error) {
	return read(&Document{name: name, secret: true}, data, holds, top)
}

func read(d *Document, data []byte, holds string, top func(*Document) Setter) (*Document, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	d.source, d.places, d.left = string(data), map[string]*Node{}, len(data)+aliased
	if len(data) > MaxBytes {
		return nil, d.Errorf(nil, "the file is too large: want at most %d bytes", MaxBytes)
	}
	if n := notText(d.source); n != nil {
		return nil, d.Errorf(n, "want UTF-8 text without control characters")
	}
	body, err := d.body(data, holds)
	if err != nil {
		return nil, err
	}
	return d, d.visit(body, "", top(d))
}

// notText returns the place of the first byte that no YAML file may have, nil if
// there is none. The parser's error would not have the place.
func notText(s string) *Node {
	for i, r := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r) {
			before := s[:i]
			line := before[strings.LastIndexByte(before, '\n')+1:]
			return &Node{Line: strings.Count(before, "\n") + 1, Column: utf8.RuneCountInString(line) + 1}
		}
	}
	return nil
}

// body returns the body of the file's one document.
func (d *Document) body(data []byte, holds string) (body *Node, err error) {
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(
		loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		return nil, d.Errorf(nil, "%w", err)
	}
	for {
		var doc Node
		err := loader.Load(&doc)
		switch {
		case errors.Is(err, io.EOF) && body == nil:
			return nil, d.Errorf(nil, "the file is empty: want %s", holds)
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, d.syntax(err)
		case len(doc.Content) == 0 || doc.Content[0].Tag == tagNull:
			continue // nothing between two ---
		case body != nil:
			return nil, d.Errorf(doc.Content[0], "a second document: want one in a file")
		}
		body = doc.Content[0]
	}
}

// Mapping reads a mapping with these fields and no others. A field with a null value counts as missing, unless its
// Null is set.
func (d *Document) Mapping(fields ...Field) Setter {
	var names, need []string
	for _, f := range fields {
		names = append(names, f.Name)
		if f.Need {
			need = append(need, f.Name)
		}
	}
	want := strings.Join(names, ", ")
	return func(n *Node, at string) error {
		if n.Kind != yaml.MappingNode {
			return d.Errorf(n, "%s%s: want a mapping of %s", label(at), d.show(n), want)
		}
		given := make([]bool, len(fields))
		err := d.pairs(n, map[string]bool{}, func(key, value *Node) error {
			i := slices.Index(names, key.Value)
			if i < 0 || key.Kind != yaml.ScalarNode {
				return d.Errorf(key, "unknown field%s: want %s", d.Quoted(key.Value, names...), want)
			}
			if IsNull(value) && !fields[i].Null {
				return nil
			}
			given[i] = true
			return d.visit(value, strings.TrimPrefix(at+"."+key.Value, "."), fields[i].Set)
		})
		if err != nil {
			return err
		}
		for i, f := range fields {
			if f.Need && !given[i] {
				return d.Errorf(n, "%s is missing: want at least %s", f.Name, strings.Join(need, ", "))
			}
		}
		return nil
	}
}

// pairs calls each for every field of a mapping, once per name. The mapping's direct
// fields come before the fields of mappings that it merges with <<. Of those, an
// earlier mapping comes before a later one.
func (d *Document) pairs(n *Node, seen map[string]bool, each func(key, value *Node) error) error {
	own := map[string]*Node{}
	var merged []*Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == tagMerge {
			merged = append(merged, value)
			continue
		}
		if first := own[key.Value]; first != nil {
			return d.Errorf(key, "field%s is given twice; first in line %d", d.Quoted(key.Value), first.Line)
		}
		own[key.Value] = key
		if seen[key.Value] {
			continue
		}
		seen[key.Value] = true
		if err := each(key, value); err != nil {
			return err
		}
	}
	for _, from := range merged {
		if err := d.merge(from, seen, each); err != nil {
			return err
		}
	}
	return nil
}

// merge calls each for the fields of the value of <<, a mapping or a list of mappings.
func (d *Document) merge(n *Node, seen map[string]bool, each func(key, value *Node) error) error {
	n, err := d.enter(n)
	if err != nil {
		return err
	}
	defer d.leave()
	switch n.Kind {
	case yaml.MappingNode:
		return d.pairs(n, seen, each)
	case yaml.SequenceNode:
		for _, one := range n.Content {
			if err := d.merge(one, seen, each); err != nil {
				return err
			}
		}
		return nil
	}
	return d.Errorf(n, "<< %s: want a mapping to take fields from, or a list of them", d.show(n))
}

// List reads each element of a list with element.
func (d *Document) List(element Setter) Setter {
	return func(n *Node, at string) error {
		if n.Kind != yaml.SequenceNode {
			return d.Errorf(n, "%s%s: want a list", label(at), d.show(n))
		}
		if len(n.Content) > MaxEntries {
			return d.Errorf(n.Content[MaxEntries], "a list: want at most %d entries", MaxEntries)
		}
		for i, v := range n.Content {
			if err := d.visit(v, fmt.Sprintf("%s[%d]", at, i), element); err != nil {
				return err
			}
		}
		return nil
	}
}

// visit records the node's place and reads it with set.
func (d *Document) visit(n *Node, at string, set Setter) error {
	n, err := d.enter(n)
	if err != nil {
		return err
	}
	defer d.leave()
	d.places[at] = n
	return set(n, at)
}

// enter goes one value down, and returns the value. For an alias, it returns the value
// that the alias names. It returns an error if there are too many values or too many
// levels. leave goes back up.
func (d *Document) enter(n *Node) (*Node, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.depth++; d.depth > maxDepth {
		return nil, d.Errorf(n, "lists and mappings in each other: want at most %d", maxDepth)
	}
	if d.left--; d.left < 0 {
		return nil, d.Errorf(n, "more than %d values, aliases counted at each use", len(d.source)+aliased)
	}
	return n, nil
}

func (d *Document) leave() { d.depth-- }

func (d *Document) syntax(err error) error {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		return d.Errorf(nil, "%w", err)
	}
	at := &Node{Line: e.Mark.Line, Column: e.Mark.Column}
	for _, open := range []string{"flow", "quoted", "alias", "anchor", "tag"} { // the place of these is their beginning
		if strings.Contains(e.ContextMsg, open) && e.ContextMark.Line > 0 {
			at = &Node{Line: e.ContextMark.Line, Column: e.ContextMark.Column}
		}
	}
	switch star, ok := d.star(at); {
	case ok && d.secret:
		return d.Errorf(at, "text that begins with * needs quotes")
	case d.secret: // the parser's message can quote the file
		return d.Errorf(at, "not YAML (text that begins with & ! %% @ ` or has a colon needs quotes)")
	case ok:
		return d.Errorf(at, `%s: want a name given before with &; text that begins with * needs quotes: "%s"`, star,
			star)
	case e.ContextMsg != "":
		return d.Errorf(at, "%s: %s", e.ContextMsg, e.Message)
	}
	return d.Errorf(at, "%s", e.Message)
}

// star returns the word at a place, and whether that begins with *.
func (d *Document) star(at *Node) (string, bool) {
	lines := d.lines()
	if at.Line < 1 || at.Line > len(lines) {
		return "", false
	}
	line := []rune(lines[at.Line-1])
	rest := string(line[min(max(at.Column-1, 0), len(line)):])
	word, _, _ := strings.Cut(rest, " ")
	return strings.TrimRight(word, ",]}"), strings.HasPrefix(rest, "*")
}
