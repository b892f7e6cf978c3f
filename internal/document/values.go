package document

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Tags that the parser gives to values.
const (
	tagText  = "!!str"
	tagWhole = "!!int"
	tagTruth = "!!bool"
	tagNull  = "!!null"
	tagMerge = "!!merge"
)

// Leaf reads one value with parse, whose error says what is wanted.
func Leaf[T any](d *Document, dst *T, parse func(*Node) (T, error)) Setter {
	return func(n *Node, at string) error {
		v, err := parse(n)
		if err != nil {
			return d.Errorf(n, "%s%s: want %w", label(at), d.show(n), err)
		}
		*dst = v
		return nil
	}
}

// Leaves reads a list of such values, and appends them.
func Leaves[T any](d *Document, dst *[]T, parse func(*Node) (T, error)) Setter {
	return d.List(func(n *Node, at string) error {
		var one T
		err := Leaf(d, &one, parse)(n, at)
		*dst = append(*dst, one)
		return err
	})
}

// Text also accepts numbers and booleans, as they are written: a key can be 42 or true.
func Text(n *Node) (string, error) {
	switch n.Tag {
	case tagText, tagWhole, "!!float", tagTruth, "!!timestamp":
		return n.Value, nil
	}
	return "", errors.New("text")
}

// IsNull reports whether a value is null, or nothing at all.
func IsNull(n *Node) bool { return n.Tag == tagNull }

// IsText reports whether a value is text, and no number, boolean, list or mapping.
func IsText(n *Node) bool { return n.Tag == tagText }

// IsPlain reports whether a value is written without quotes, not as a block of lines, and without a tag.
func IsPlain(n *Node) bool { return n.Kind == yaml.ScalarNode && n.Style == 0 }

// IsMapping reports whether a value is a mapping.
func IsMapping(n *Node) bool { return n.Kind == yaml.MappingNode }

// Truth accepts true and false.
func Truth(n *Node) (bool, error) {
	if n.Tag == tagTruth {
		if v, err := strconv.ParseBool(strings.ToLower(n.Value)); err == nil {
			return v, nil
		}
	}
	return false, errors.New("true or false")
}

// Whole accepts only whole numbers in decimal form, because other programs read 0100
// as 64. The bounds are only for the message of the error for other text. The caller
// compares the number with the bounds.
func Whole(least, most int64) func(*Node) (int64, error) {
	return func(n *Node) (int64, error) {
		digits := strings.ReplaceAll(n.Value, "_", "")
		v, err := strconv.ParseInt(digits, 10, 64)
		if n.Tag != tagWhole || err != nil || len(digits) > 1 && strings.TrimLeft(digits, "+-")[0] == '0' {
			return 0, fmt.Errorf("a whole number from %d to %d", least, most)
		}
		return v, nil
	}
}

// Within is Whole, and also checks that the number is between the two bounds.
func Within(least, most int64) func(*Node) (int64, error) {
	whole := Whole(least, most)
	return func(n *Node) (int64, error) {
		v, err := whole(n)
		if err == nil && (v < least || v > most) {
			err = fmt.Errorf("a whole number from %d to %d", least, most)
		}
		return v, err
	}
}

// Tree returns any value: text, numbers, booleans, nil, lists and mappings.
func (d *Document) Tree(n *Node) (any, error) {
	n, err := d.enter(n)
	if err != nil {
		return nil, err
	}
	defer d.leave()
	switch n.Kind {
	case yaml.MappingNode:
		out := map[string]any{}
		return out, d.pairs(n, map[string]bool{}, func(key, value *Node) (err error) {
			if key.Kind != yaml.ScalarNode {
				return d.Errorf(key, "%s: want text before the colon", d.show(key))
			}
			out[key.Value], err = d.Tree(value)
			return err
		})
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, one := range n.Content {
			if out[i], err = d.Tree(one); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	var out any
	switch n.Tag {
	case tagNull:
		return nil, nil
	case tagTruth:
		return Truth(n)
	case tagWhole, "!!float":
		out, err = strconv.ParseFloat(strings.ReplaceAll(n.Value, "_", ""), 64)
		if err == nil {
			return out, nil
		}
	}
	return n.Value, nil
}
