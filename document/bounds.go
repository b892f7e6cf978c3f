package document

import (
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. The parser takes ten seconds and more for 64 KB of brackets, or
// for a megabyte of entries of one list. Its lexer does not, so the bounds are held
// against the tokens, before anything is parsed.
const (
	// MaxBytes is the largest file.
	MaxBytes = 1 << 20
	// MaxEntries is the longest list.
	MaxEntries = 20_000
	maxKeys    = 100 // of one mapping
	maxDepth   = 40  // of lists and mappings in each other: nested descriptors take 2 each
	maxNames   = MaxEntries
)

// File gives what is in a file, up to a byte more than Read takes: a device has no end.
func File(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// block is a list or mapping that is open.
type block struct {
	column        int // 0: in brackets
	keys, entries int
}

// bounds gives the first place where the tokens go beyond what the parser is given.
func (d *Document) bounds(tokens token.Tokens) error {
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

func (d *Document) within(tk *token.Token, open []block, names int) error {
	var top block
	if len(open) > 0 {
		top = open[len(open)-1]
	}
	switch {
	case len(open) > maxDepth:
		return d.errorf(tk, "lists and mappings in each other: want at most %d", maxDepth)
	case top.entries > MaxEntries:
		return d.errorf(tk, "a list: want at most %d entries", MaxEntries)
	case top.keys > maxKeys:
		return d.errorf(tk, "a mapping: want at most %d keys", maxKeys)
	case names > maxNames:
		return d.errorf(tk, "anchors, aliases and tags: want at most %d", maxNames)
	}
	return nil
}
