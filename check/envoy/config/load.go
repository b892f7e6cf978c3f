package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/windows"
)

// Option changes how a configuration is taken.
type Option func(*options) error

type options struct {
	algorithm, tag string
	onDeny         windows.OnDeny
	// shadow, quota: of all limits. merge: files of one domain are one. unlevelled: no
	// limit has levels.
	shadow, quota, merge, unlevelled bool
	zone                             string // of months and years
}

// Shadow makes all limits deny nothing: they count, and statuses say what is over.
func Shadow(on bool) Option { return func(o *options) error { o.shadow = on; return nil } }

// Quota makes all limits quotas (quota_mode).
func Quota(on bool) Option { return func(o *options) error { o.quota = on; return nil } }

// MergeDomains takes several files of one domain as one; they may not have the same
// descriptor at their top.
func MergeDomains(on bool) Option { return func(o *options) error { o.merge = on; return nil } }

// Unlevelled limits publish nothing, for a process without workers: nobody would end
// their levels.
func Unlevelled(on bool) Option { return func(o *options) error { o.unlevelled = on; return nil } }

// OnDeny says whether hits that are denied count, of limits that do not say so themselves (on_deny);
// default skip.
func OnDeny(what string) Option {
	return func(o *options) error {
		o.onDeny = windows.OnDeny(cmp.Or(what, string(windows.OnDenySkip)))
		if o.onDeny != windows.OnDenySkip && o.onDeny != windows.OnDenyCharge {
			return fmt.Errorf("on_deny %q: want %s or %s", what, windows.OnDenySkip, windows.OnDenyCharge)
		}
		return nil
	}
}

// Algorithm counts all limits with it; default sliding-log.
func Algorithm(name string) Option {
	return func(o *options) error {
		if name != "" {
			if err := windows.CheckAlgorithm(name); err != nil {
				return err
			}
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

// Load reads the configuration of envoyproxy/ratelimit: one YAML file, or all
// *.yaml and *.yml of a directory in the order of their names. The first thing
// wrong is an error that begins with FILE:LINE:COLUMN.
func Load(path string, list ...Option) (*Limits, error) {
	o, err := optionsOf(list)
	if err != nil {
		return nil, err
	}
	names, err := filesOf(path)
	if err != nil {
		return nil, fmt.Errorf("load limits: %w", err)
	}
	files, err := reload.Read("limits", names...)
	if err != nil {
		return nil, err
	}
	return parse(files, o)
}

func parse(texts []reload.File, o options) (*Limits, error) {
	var files []*file
	for _, t := range texts {
		f, err := readFile(t.Path, t.Data)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return build(files, o)
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
