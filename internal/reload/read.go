package reload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Bounds of what is read, in bytes. With them, a wrong path, such as an endless device, cannot use up the memory.
const (
	MaxBytes = 1 << 20  // of one file
	MaxTotal = 16 << 20 // of all files
)

// File is a file as it was read.
type File struct {
	Path string
	Data []byte
}

// Beside returns the path that a file names. A relative one begins at the folder of the file; "" stays.
func Beside(file, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// Read reads the files at the paths, in their order. name says in errors what is being read. Each must be a regular
// file: a pipe could block the reader for ever.
func Read(name string, paths ...string) ([]File, error) { return readAll(name, false, paths) }

// ReadGiven is Read for files that a user gives to be read once: they may also be pipes, as in rules check <(generate).
func ReadGiven(name string, paths ...string) ([]File, error) { return readAll(name, true, paths) }

func readAll(name string, pipes bool, paths []string) ([]File, error) {
	var files []File
	total := 0
	for _, path := range paths {
		data, err := readBounded(path, pipes)
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

func readBounded(path string, pipes bool) ([]byte, error) {
	mode := os.O_RDONLY
	if !pipes {
		mode |= syscall.O_NONBLOCK // opening a pipe does not wait for its writer then
	}
	file, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return nil, err
	}
	var data []byte
	info, err := file.Stat()
	switch {
	case err != nil:
	case !pipes && !info.Mode().IsRegular() && !info.IsDir(): // the error of reading a directory names it
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}
	default:
		data, err = io.ReadAll(io.LimitReader(file, MaxBytes+1))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxBytes)
	}
	return data, nil
}
