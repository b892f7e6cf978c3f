package windows

import (
	"context"
	"log/slog"

	"github.com/streamcounter/streamcounter/internal/reload"
)

// Source has the present rules. The rules of a file are loaded again when the file
// changes (Run), and by Reload. A file with an error changes nothing.
type Source struct{ files *reload.Files[*Rules] }

// NewSource loads the rules of the file at path. A nil log means silence.
func NewSource(path string, log *slog.Logger) (*Source, error) {
	files, err := reload.Open("rules", log, func(files []reload.File) (*Rules, error) {
		rules, err := Parse(path, files[0].Data)
		if err == nil {
			rules.LogWarnings(log)
		}
		return rules, err
	}, path)
	if err != nil {
		return nil, err
	}
	return &Source{files}, nil
}

// Fixed returns a source of rules that never change.
func Fixed(r *Rules) *Source { return &Source{reload.Fixed(r)} }

// Rules returns the present rules.
func (s *Source) Rules() *Rules { return s.files.Value() }

// Refused returns the error of the last attempt to reload; nil: the present rules are those of the file.
func (s *Source) Refused() error { return s.files.Refused() }

// OnReload adds a function to call after each attempt to reload, with nil or
// the error. Calls come one at a time. The function must not call Reload or OnReload.
func (s *Source) OnReload(hook func(err error)) { s.files.OnReload(hook) }

// Reload loads the file again, even if it has not changed. If it returns an error,
// which it also logs, the present rules are kept. With Fixed rules it does nothing.
func (s *Source) Reload() error { return s.files.Reload() }

// Run reloads the file when it has changed, until ctx ends.
func (s *Source) Run(ctx context.Context) { s.files.Run(ctx) }
