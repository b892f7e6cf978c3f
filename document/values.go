package document

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Leaf reads one value; the error of parse says what is wanted.
func Leaf[T any](d *Document, dst *T, parse func(ast.Node) (T, error)) Setter {
	return func(n ast.Node, at string) error {
		v, err := parse(n)
		if err != nil {
			return d.errorf(start(n), "%s%s: want %w", label(at), d.show(n), err)
		}
		*dst = v
		return nil
	}
}

// Text takes numbers and truths as they are written: a key can be 42 or true.
func Text(n ast.Node) (string, error) {
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

// Truth takes true and false.
func Truth(n ast.Node) (bool, error) {
	if b, ok := n.(*ast.BoolNode); ok {
		return b.Value, nil
	}
	return false, errors.New("true or false")
}

// Whole takes whole numbers in decimals alone: YAML would read 0100 as 64. The
// bounds word the error; the caller holds the number against them, with words
// of its own, unless it is no 64-bit number at all.
func Whole(least, most int64) func(ast.Node) (int64, error) {
	return func(n ast.Node) (int64, error) {
		if tk := n.GetToken(); tk.Type == token.IntegerType {
			if v, err := strconv.ParseInt(strings.ReplaceAll(tk.Value, "_", ""), 10, 64); err == nil {
				return v, nil
			}
		}
		return 0, fmt.Errorf("a whole number from %d to %d", least, most)
	}
}
