package windows

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Load reads the rules from a YAML file; see Parse.
func Load(path string) (*Rules, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads rules as YAML; testdata/working_full.yml shows every field. The
// first thing wrong, of syntax or of sense, is an error that begins with
// NAME:LINE:COLUMN, says what was found and what is wanted, and shows the place.
func Parse(name string, data []byte) (*Rules, error) {
	// Windows editors write both; go-yaml miscounts the lines after a CRLF.
	data = bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	d := &document{name: name, source: string(data), places: map[string]*token.Token{}, anchors: map[string]ast.Node{}}
	if len(data) > MaxFileBytes {
		return nil, d.errorf(nil, "the file is too large: want at most %d bytes", MaxFileBytes)
	}
	tokens := lexer.Tokenize(d.source)
	if err := d.bounds(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, d.syntax(err)
	}
	body, err := d.only(file)
	if err != nil {
		return nil, err
	}
	var list []*Rule
	if err := d.visit(body, "", d.mapping(
		field{"rules", needed, d.list(func(n ast.Node, at string) error {
			rule := &Rule{Hold: DefaultHold}
			list = append(list, rule)
			return d.rule(rule)(n, at)
		})},
	)); err != nil {
		return nil, err
	}
	rules, i, f := newRules(list)
	if f != nil {
		return nil, d.fault(i, f)
	}
	return rules, nil
}

func (d *document) rule(r *Rule) setter {
	return d.mapping(
		field{"name", needed, leaf(d, &r.Name, text)},
		field{"match", needed, leaf(d, &r.Match, text)},
		field{"algorithm", optional, leaf(d, &r.Algorithm, text)},
		field{"buckets", optional, func(n ast.Node, at string) error {
			if err := leaf(d, &r.Buckets, whole)(n, at); err != nil || r.Buckets != 0 {
				return err
			}
			return d.errorf(start(n), "buckets 0: want a whole number from 1 to %d", MaxBuckets)
		}},
		field{"windows", needed, d.list(func(n ast.Node, at string) error {
			r.Windows = append(r.Windows, Window{})
			w := &r.Windows[len(r.Windows)-1]
			return d.mapping(
				field{"limit", needed, leaf(d, &w.Limit, whole)},
				field{"per", needed, leaf(d, &w.Per, duration)},
			)(n, at)
		})},
		field{"alerts", optional, d.list(func(n ast.Node, at string) error {
			r.Alerts = append(r.Alerts, 0)
			return leaf(d, &r.Alerts[len(r.Alerts)-1], percentage)(n, at)
		})},
		field{"hold", optional, leaf(d, &r.Hold, duration)},
		field{"on_error", optional, leaf(d, (*string)(&r.OnError), text)},
		field{"shadow", optional, leaf(d, &r.Shadow, truth)},
	)
}

// document is a YAML file while it is read. Walking the syntax tree ourselves,
// rather than decoding into structs, is what keeps every value's place, refuses
// what a decoder lets through (1.5 as 1, 0100 as 64, a second document), and
// words every error for those who write rules.
type document struct {
	name    string
	source  string
	places  map[string]*token.Token // field, as in rules[0].windows[1].per → where it stands
	anchors map[string]ast.Node     // &name → what it names
	values  int                     // how many were visited
}

// setter takes in the value of a field, whose name from the top is at.
type setter func(n ast.Node, at string) error

type field struct {
	name string
	need bool
	set  setter
}

const (
	needed   = true
	optional = false
)

// mapping takes these fields and no others; a null is as good as no field.
func (d *document) mapping(fields ...field) setter {
	var names, need []string
	for _, f := range fields {
		names = append(names, f.name)
		if f.need {
			need = append(need, f.name)
		}
	}
	want := strings.Join(names, ", ")
	return func(n ast.Node, at string) error {
		m, ok := n.(*ast.MappingNode)
		if !ok {
			return d.errorf(start(n), "%s%s: want a mapping of %s", label(at), show(n), want)
		}
		given := make([]bool, len(fields))
		for _, v := range m.Values {
			key := v.Key.GetToken()
			i := slices.Index(names, key.Value)
			if i < 0 {
				return d.errorf(key, "unknown field %q: want %s", key.Value, want)
			}
			if _, null := v.Value.(*ast.NullNode); null {
				continue
			}
			given[i] = true
			if err := d.visit(v.Value, strings.TrimPrefix(at+"."+key.Value, "."), fields[i].set); err != nil {
				return err
			}
		}
		for i, f := range fields {
			if f.need && !given[i] {
				return d.errorf(start(n), "%s is missing: want at least %s", f.name, strings.Join(need, ", "))
			}
		}
		return nil
	}
}

func (d *document) list(element setter) setter {
	return func(n ast.Node, at string) error {
		s, ok := n.(*ast.SequenceNode)
		if !ok {
			return d.errorf(start(n), "%s%s: want a list", label(at), show(n))
		}
		for i, v := range s.Values {
			if err := d.visit(v, fmt.Sprintf("%s[%d]", at, i), element); err != nil {
				return err
			}
		}
		return nil
	}
}

// leaf reads one value; the error of parse says what is wanted.
func leaf[T any](d *document, dst *T, parse func(ast.Node) (T, error)) setter {
	return func(n ast.Node, at string) error {
		v, err := parse(n)
		if err != nil {
			return d.errorf(start(n), "%s%s: want %w", label(at), show(n), err)
		}
		*dst = v
		return nil
	}
}

// visit notes where the node stands and hands it on.
func (d *document) visit(n ast.Node, at string, set setter) error {
	if d.values++; d.values > maxValues {
		return d.errorf(start(n), "too many values, with all that aliases stand for: want at most %d", maxValues)
	}
	n, err := d.resolve(n, at)
	if err != nil {
		return err
	}
	d.places[at] = start(n)
	return set(n, at)
}

// resolve goes through anchors and aliases to the value, which stands where
// the anchor does. What it stores is resolved, so no alias leads in a circle.
func (d *document) resolve(n ast.Node, at string) (ast.Node, error) {
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
		return nil, d.errorf(v.Start, `%s*%s: want a name given before with &; text that begins with * needs quotes: "*%s"`, label(at), name, name)
	}
	return n, nil
}

// only is the body of the file's one document.
func (d *document) only(file *ast.File) (ast.Node, error) {
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
		return nil, d.errorf(nil, "the file is empty: want rules, a list of at least one")
	}
	return body, nil
}

func (d *document) syntax(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return d.errorf(nil, "%w", err)
	}
	if tk := e.GetToken(); tk != nil && tk.Type == token.AliasType {
		return d.errorf(tk, `%s: text that begins with * needs quotes: "*"`, e.GetMessage())
	}
	return d.errorf(e.GetToken(), "%s", e.GetMessage())
}

// fault says where in the file a fault of a rule is.
func (d *document) fault(rule int, f *fault) error {
	at := "rules"
	if rule >= 0 {
		at = fmt.Sprintf("rules[%d].%s", rule, f.at)
	}
	msg := f.msg
	if first := d.places[f.first]; first != nil && f.first != "" {
		msg += fmt.Sprintf("; first in line %d", first.Position.Line)
	}
	return d.errorf(d.places[at], "%s", msg)
}

func (d *document) errorf(at *token.Token, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if text := err.Error(); len(text) > maxMessage { // it shows a value that nobody meant
		err = errors.New(strings.ToValidUTF8(text[:maxMessage], "") + "…")
	}
	if at == nil || at.Position == nil {
		return fmt.Errorf("%s:1:1: %w", d.name, err)
	}
	p := at.Position
	return fmt.Errorf("%s:%d:%d: %w\n%s", d.name, p.Line, p.Column, err, d.excerpt(p.Line, p.Column))
}

// excerpt shows a place with up to three lines before and after. It has
// go-yaml's form, whose own prints tokens rather than the source: a null that
// nobody wrote, and the caret below a later line where a token goes on.
func (d *document) excerpt(line, column int) string {
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

// text takes numbers and truths as they are written: a key can be 42 or true.
func text(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	}
	return "", errors.New("text")
}

func truth(n ast.Node) (bool, error) {
	if b, ok := n.(*ast.BoolNode); ok {
		return b.Value, nil
	}
	return false, errors.New("true or false")
}

// whole takes decimals alone: YAML would read 0100 as 64.
func whole(n ast.Node) (int64, error) {
	if tk := n.GetToken(); tk.Type == token.IntegerType {
		if v, err := strconv.ParseInt(strings.ReplaceAll(tk.Value, "_", ""), 10, 64); err == nil {
			return v, nil
		}
	}
	return 0, fmt.Errorf("a whole number from 1 to %d", MaxLimit)
}

func percentage(n ast.Node) (int, error) {
	if s, ok := n.(*ast.StringNode); ok {
		digits, _ := strings.CutSuffix(s.Value, "%")
		if v, err := strconv.Atoi(digits); err == nil && strconv.Itoa(v)+"%" == s.Value {
			return v, nil
		}
	}
	return 0, errors.New("a whole percentage from 1% to 99%, as 80%")
}

var errDuration = errors.New("numbers with units (ns, us, ms, s, m, h, d), as 500ms, 90s, 1d12h")

func duration(n ast.Node) (time.Duration, error) {
	s, ok := n.(*ast.StringNode)
	if !ok {
		return 0, errDuration
	}
	return parseDuration(s.Value)
}

const day = 24 * time.Hour

// parseDuration is time.ParseDuration with days of 24 hours in front: -1d12h.
func parseDuration(s string) (time.Duration, error) {
	unsigned, negative := strings.CutPrefix(s, "-")
	days, rest, ok := strings.Cut(unsigned, "d")
	if !ok {
		days, rest = "0", unsigned
	}
	// The sign is off, so that what is left must begin with a digit.
	if strings.Trim(days, "0123456789.") != "" || (rest != "" && strings.ContainsAny(rest[:1], "+-")) {
		return 0, errDuration
	}
	if rest == "" && ok {
		rest = "0s"
	}
	whole, err := time.ParseDuration(days + "h")
	more, err2 := time.ParseDuration(rest)
	if err != nil || err2 != nil || whole > (1<<63-1)/24 || whole*24 > 1<<63-1-more {
		return 0, errDuration
	}
	if negative {
		return -(whole*24 + more), nil
	}
	return whole*24 + more, nil
}

// inDays writes a duration as short as people do: 31d, 1h30m, 10ms.
func inDays(d time.Duration) string {
	if d != 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}
