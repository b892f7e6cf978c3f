package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	// Writes images in the format of registries, without a daemon, so that their digests are reproducible too.
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"golang.org/x/crypto/x509roots/fallback/bundle" // Mozilla's authorities, pinned: those of machines differ
)

// image writes an OCI layout with an image for each Linux architecture, as an archive of the directory
// (streamcounter_VERSION_image.tar), which skopeo, crane and podman can read.
func (r *release) image(programs map[target]string) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range r.targets {
		if t.os != "linux" {
			continue
		}
		image, err := r.imageOf(t, programs[t])
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.os, Architecture: t.arch}}})
	}
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": r.version}
	if err := list.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	return r.tarOf(dir, filepath.Join(r.out, "streamcounter_"+r.version+"_image.tar"))
}

func (r *release) imageOf(t target, program string) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var root bytes.Buffer
	archive := tar.NewWriter(&root)
	var authorities bytes.Buffer
	for ca := range bundle.Roots() {
		if ca.Constraint == nil { // the few others are trusted up to a date, which a PEM file cannot express
			if err := pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	if err := r.add(archive, "etc/ssl/certs/ca-certificates.crt", 0o644, authorities.Bytes()); err != nil {
		return nil, err
	}
	if err := r.add(archive, "streamcounter", 0o755, content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(root.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{Layer: layer,
		History: v1.History{Created: v1.Time{Time: r.at}, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	r.configure(config, t)
	return mutate.ConfigFile(image, config)
}

// configure sets the same as deploy/Dockerfile, and the labels of OCI.
func (r *release) configure(config *v1.ConfigFile, t target) {
	config.OS, config.Architecture, config.Created = t.os, t.arch, v1.Time{Time: r.at}
	config.Config = v1.Config{
		Entrypoint: []string{"/streamcounter"}, User: "65532:65532",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8082/tcp": {}},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/streamcounter", "health"}, Interval: 5 * time.Second,
			Timeout: 3 * time.Second, StartPeriod: 10 * time.Second, Retries: 3},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "streamcounter",
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.created":  r.at.Format(time.RFC3339),
			"org.opencontainers.image.source":   "https://github.com/streamcounter/streamcounter",
		},
	}
}

func (r *release) tarOf(dir, path string) error {
	var packed bytes.Buffer
	archive := tar.NewWriter(&packed)
	all := os.DirFS(dir)
	err := fs.WalkDir(all, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(all, name)
		if err != nil {
			return err
		}
		return r.add(archive, name, 0o644, content)
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}
