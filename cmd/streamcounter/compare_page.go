package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/compare"
)

// pageFile is the file of --html: begun before the run, so that no run is
// wasted on a file that cannot be written, and put in its place when it is whole.
type pageFile struct {
	path string
	file *os.File // nil where no page was asked for, and once it is written
}

func openPage(cmd *cobra.Command) (*pageFile, error) {
	path, _ := cmd.Flags().GetString("html")
	if !cmd.Flags().Changed("html") {
		return &pageFile{}, nil
	}
	if path == "" {
		return nil, errors.New("--html is empty: expected the name of a file")
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("--html: %s is no regular file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".streamcounter-compare-*")
	if err != nil {
		return nil, fmt.Errorf("--html: %q cannot be written: %w", path, err)
	}
	return &pageFile{path, f}, nil
}

// discard leaves nothing behind of a page that was not written.
func (p *pageFile) discard() {
	if p.file != nil {
		_ = p.file.Close()
		_ = os.Remove(p.file.Name())
	}
}

func (p *pageFile) write(list []*compare.Comparison, command string) error {
	if p.file == nil {
		return nil
	}
	err := compare.WritePage(p.file, list, command)
	if err == nil {
		err = p.file.Chmod(0o644) // a temporary file is for its owner only
	}
	if err = errors.Join(err, p.file.Close()); err == nil {
		err = os.Rename(p.file.Name(), p.path)
	}
	if err != nil {
		return fmt.Errorf("--html: writing %s: %w", p.path, err)
	}
	p.file = nil
	return nil
}

// commandLine is what makes the same comparison again, for a shell, without
// the password of --redis.
func commandLine(cmd *cobra.Command) string {
	words := []string{"streamcounter", "compare"}
	add := func(name, value string) { words = append(words, "--"+name, quote(value)) }
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed { // by a flag or by the environment
			return
		}
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, one := range v.GetSlice() {
				add(f.Name, one)
			}
		default:
			switch {
			case f.Name == "redis":
				add(f.Name, redacted(f.Value.String()))
			case f.Value.Type() == "bool":
				words = append(words, "--"+f.Name+strings.TrimSuffix("="+f.Value.String(), "=true"))
			default:
				add(f.Name, f.Value.String())
			}
		}
	})
	return strings.Join(words, " ")
}

func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !strings.ContainsRune(plainRunes, r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

const plainRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%"
