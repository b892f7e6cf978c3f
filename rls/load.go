package rls

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/document"
	"github.com/streamcounter/streamcounter/windows"
)

// Option changes how a configuration is taken.
type Option func(*options) error

type options struct{ algorithm, tag string }

// Algorithm counts all limits with it; default sliding-log.
func Algorithm(name string) Option {
	return func(o *options) error {
		if name != "" && !slices.Contains(windows.Algorithms, name) {
			return fmt.Errorf("algorithm %q: want %s", name, strings.Join(windows.Algorithms, ", "))
		}
		o.algorithm = name
		return nil
	}
}

// Tag puts the entry of that name in braces in keys, so that descriptors with
// the same value of it are counted in one partition; empty: none.
func Tag(name string) Option {
	return func(o *options) error {
		if len(name) > maxTagName {
			return fmt.Errorf("tag %q: want the key of a descriptor's entry, at most %d bytes", name, maxTagName)
		}
		o.tag = name
		return nil
	}
}

func optionsOf(list []Option) (o options, err error) {
	for _, set := range list {
		if err := set(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// maxConfig is how much a configuration may hold in all, in bytes.
const maxConfig = 16 << 20

// Load reads the configuration of envoyproxy/ratelimit: one YAML file, or all
// *.yaml and *.yml of a directory in the order of their names. The first thing
// wrong is an error that begins with FILE:LINE:COLUMN.
func Load(path string, list ...Option) (*Limits, error) {
	o, err := optionsOf(list)
	if err != nil {
		return nil, err
	}
	texts, err := readAll(path)
	if err != nil {
		return nil, err
	}
	return parse(texts, o)
}

// text is one file of a configuration as it was read.
type text struct {
	name string
	data []byte
}

func parse(texts []text, o options) (*Limits, error) {
	var files []*file
	for _, t := range texts {
		f, err := readFile(t.name, t.data)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return build(files, o)
}

func readAll(path string) ([]text, error) {
	names, err := filesOf(path)
	if err != nil {
		return nil, fmt.Errorf("load limits: %w", err)
	}
	var out []text
	size := 0
	for _, name := range names {
		data, err := document.File(name)
		if err != nil {
			return nil, fmt.Errorf("load limits: %w", err)
		}
		if size += len(data); size > maxConfig {
			return nil, fmt.Errorf("load limits: %s: more than %d MB in all", name, maxConfig>>20)
		}
		out = append(out, text{name, data})
	}
	return out, nil
}

// filesOf lists the files that make up the configuration. In a mounted ConfigMap
// they are links, and beside them stand directories whose names begin with dots.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	list, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range list { // sorted by name
		ext := filepath.Ext(entry.Name())
		if entry.IsDir() || strings.HasPrefix(entry.Name(), ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		out = append(out, filepath.Join(path, entry.Name()))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no *.yaml and no *.yml in it", path)
	}
	return out, nil
}

// content joins files so that no two configurations give the same.
func content(texts []text) []byte {
	var out []byte
	for _, t := range texts {
		for _, part := range [][]byte{[]byte(t.name), t.data} {
			out = append(binary.AppendUvarint(out, uint64(len(part))), part...)
		}
	}
	return out
}
