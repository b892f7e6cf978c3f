package sinks

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/reload"
)

// File is a sinks file that is followed.
type File = reload.Files[[]*Sink]

// Open reads the sinks of the YAML file at path, and the files of secrets that it names:
//
//	sinks:
//	  - {name: pager, type: webhook, url: "https://example.com/hook", secret_file: /run/secrets/pager}
//
// Run and Reload of the File reload these files when they change, secrets included.
func Open(path string, log *slog.Logger) (*File, error) {
	return reload.OpenList("sinks", log, parseFiles, func() ([]string, error) { return filesOf(path) })
}

// filesOf returns the paths of the file and of the files that it names. If the file cannot be read as sinks, it
// returns only its path, and parseFiles reports what is wrong.
func filesOf(path string) ([]string, error) {
	paths := []string{path}
	var d *document.Document
	var list []*spec
	files, err := reload.Read("sinks", path)
	if err == nil {
		d, list, err = read(path, files[0].Data)
	}
	for i := 0; err == nil && i < len(list); i++ {
		s := list[i]
		for _, named := range []struct{ field, path string }{{"url_file", s.URLFile}, {"secret_file", s.SecretFile},
			{"token_file", s.TokenFile}, {"ca_file", s.CAFile}} {
			if named.path == "" || slices.Contains(paths, named.path) {
				continue
			}
			if err := readable(named.path); err != nil {
				return nil, d.ErrorAt(fmt.Sprintf("sinks[%d].%s", i, named.field), "%s of sink %s: %w", named.field,
					s.Name, err)
			}
			paths = append(paths, named.path)
		}
	}
	return paths, nil
}

// readable reports why a file cannot be read, without its path: a secret may be written there by mistake.
func readable(path string) error {
	_, err := reload.Read("sinks", path)
	var bad *fs.PathError
	if errors.As(err, &bad) {
		return bad.Err
	}
	return err
}

// parseFiles makes the sinks from their file, which is the first, and from the files that it names.
func parseFiles(files []reload.File) ([]*Sink, error) {
	d, list, err := read(files[0].Path, files[0].Data)
	if err != nil {
		return nil, err
	}
	named := map[string]string{} // path → contents
	for _, f := range files[1:] {
		named[f.Path] = strings.TrimSpace(string(f.Data))
	}
	out := make([]*Sink, 0, len(list))
	for i, s := range list {
		sink, err := s.sink(d, fmt.Sprintf("sinks[%d].", i), named)
		if err != nil {
			return nil, err
		}
		out = append(out, sink)
	}
	return out, nil
}
