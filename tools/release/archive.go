package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
)

// file is a file of an archive: its name in the archive, its path on this machine, and its mode.
type file struct {
	name, path string
	mode       int64
}

// pack writes a .tar.gz whose bytes depend only on the files. They are in the order of the list, their times are
// those of the commit, and their owner is root.
func (r *release) pack(path, dir string, files []file) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(out) // its header has no time and no name
	archive := tar.NewWriter(packed)
	for _, f := range files {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return errors.Join(err, out.Close())
		}
		if err := r.add(archive, dir+f.name, f.mode, content); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	return errors.Join(archive.Close(), packed.Close(), out.Close())
}

func (r *release) add(archive *tar.Writer, name string, mode int64, content []byte) error {
	err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)),
		ModTime: r.at, Format: tar.FormatUSTAR})
	if err != nil {
		return err
	}
	_, err = io.Copy(archive, bytes.NewReader(content))
	return err
}
