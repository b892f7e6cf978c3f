package windows

import (
	"log/slog"

	"github.com/streamcounter/streamcounter/internal/reload"
)

// Source has the present rules. The rules of a file are loaded again when the file
// changes (Run), and by Reload. A file with an error changes nothing.
type Source struct{ *files }

type files = reload.Files[*Rules]

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
func (s *Source) Rules() *Rules { return s.Value() }
