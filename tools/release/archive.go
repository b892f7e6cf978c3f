package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
)

// file is a file of an archive: its name there, where it is on this machine, and its mode.
type file struct {
	name, path string
	mode       int64
}

// pack writes a .tar.gz whose bytes depend on the files alone: their order is that of the list, their times
// are the commit's, their owner is root.
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
