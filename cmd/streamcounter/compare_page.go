package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/compare"
)

// pageFile is the file of --html: begun before the run, so that no run is
// wasted on a file that cannot be written, and put in its place when it is whole.
type pageFile struct {
	path string
	file *os.File // nil where no page was asked for, and once it is written
}

func openPage(cmd *cobra.Command, path string) (*pageFile, error) {
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
