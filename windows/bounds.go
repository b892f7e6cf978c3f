package windows

import (
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml/token"
)

// Bounds of a rules file. The parser takes ten seconds and more for 64 KB of
// brackets, or of entries of one list. Its lexer does not, so the bounds are held
// against the tokens, before anything is parsed.
const (
	MaxFileBytes = 512 << 10
	// MaxRules bounds every other list of a file as well, and what NewRules takes.
	MaxRules = 3000
	// maxKeys is of one mapping: a rule has 9.
	maxKeys = 100
	// maxDepth is of lists and mappings in each other: rules take 6.
	maxDepth = 20
	// maxNames is of anchors, aliases and tags together.
	maxNames = 3 * MaxRules
	// maxValues is of all that the rules are made of, where each alias stands for
	// what it names: a rule with eight windows and twenty alerts has 50.
	maxValues = 50 * MaxRules
)

// read gives a file, if it is not too large to be rules.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load rules: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1)) // a device has no size
	if err != nil {
		return nil, fmt.Errorf("load rules: %w", err)
	}
	return data, nil
}

// block is a list or mapping that is open.
type block struct {
	column        int // 0: in brackets
	keys, entries int
}

// bounds gives the first place where the tokens go beyond what the parser is given.
func (d *document) bounds(tokens token.Tokens) error {
	var open []block
	line, names := 0, 0
	for _, tk := range tokens {
		switch tk.Type {
		case token.CommentType, token.DocumentHeaderType, token.DocumentEndType, token.DirectiveType:
			continue
		}
		first := tk.Position.Line != line
		line = tk.Position.Line
		top := len(open) - 1
		inBrackets := top >= 0 && open[top].column == 0
		if entry := tk.Type == token.SequenceEntryType; !inBrackets && (first || entry || tk.Type == token.MappingKeyType) {
			open = inBlock(open, tk.Position.Column, entry)
			top = len(open) - 1
		}
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			open = append(open, block{})
		case token.SequenceEndType, token.MappingEndType:
			if inBrackets {
				open = open[:top]
			}
			continue
		case token.CollectEntryType:
			if inBrackets {
				open[top].entries++
			}
		case token.AnchorType, token.AliasType, token.TagType:
			names++
		}
		if err := d.within(tk, open, names); err != nil {
			return err
		}
	}
	return nil
}

// inBlock closes the blocks that end before a column, and opens one there if none is.
func inBlock(open []block, column int, entry bool) []block {
	for len(open) > 0 && open[len(open)-1].column > column {
		open = open[:len(open)-1]
	}
	if len(open) == 0 || open[len(open)-1].column < column {
		open = append(open, block{column: column})
	}
	if top := &open[len(open)-1]; entry {
		top.entries++
	} else {
		top.keys++
	}
	return open
}

func (d *document) within(tk *token.Token, open []block, names int) error {
	var top block
	if len(open) > 0 {
		top = open[len(open)-1]
	}
	switch {
	case len(open) > maxDepth:
		return d.errorf(tk, "lists and mappings in each other: want at most %d", maxDepth)
	case top.entries > MaxRules:
		return d.errorf(tk, "a list: want at most %d entries", MaxRules)
	case top.keys > maxKeys:
		return d.errorf(tk, "a mapping: want at most %d keys", maxKeys)
	case names > maxNames:
		return d.errorf(tk, "anchors, aliases and tags: want at most %d", maxNames)
	}
	return nil
}
