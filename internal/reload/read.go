package reload

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Bounds of what is read, in bytes. A wrong path (a device is endless) can then not use up the memory of a process.
const (
	MaxBytes = 1 << 20  // of one file
	MaxTotal = 16 << 20 // of all files
)

// File is a file as it was read.
type File struct {
	Path string
	Data []byte
}

// Read reads the files at the paths, in their order. name says in errors what is being read.
func Read(name string, paths ...string) ([]File, error) {
	var files []File
	total := 0
	for _, path := range paths {
		data, err := readBounded(path)
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", name, err)
		}
		if total += len(data); total > MaxTotal {
			return nil, fmt.Errorf("load %s: %s: more than %d MB in all", name, path, MaxTotal>>20)
		}
		files = append(files, File{path, data})
	}
	return files, nil
}

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxBytes)
	}
	return data, nil
}
