package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"os"
	"runtime/debug"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go" // the format's own types, from its authors
	"github.com/google/uuid"
)

// sbom writes which modules a program was built from: those that the linker recorded in it.
func (r *release) sbom(t target, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	hashes := []cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main := cyclonedx.Component{BOMRef: "streamcounter", Type: cyclonedx.ComponentTypeApplication,
		Name:    "streamcounter",
		Version: r.version, PackageURL: "pkg:golang/" + info.Main.Path + "@v" + r.version, Hashes: &hashes,
		Properties: &[]cyclonedx.Property{{Name: "commit", Value: r.commit}, {Name: "target",
			Value: t.os + "/" + t.arch}}}
	components := []cyclonedx.Component{{BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std",
		Version: info.GoVersion, PackageURL: "pkg:golang/std@" + info.GoVersion}}
	needs := []string{"std"}
	for _, dep := range info.Deps {
		c := component(dep)
		components = append(components, c)
		needs = append(needs, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, sum[:]).URN() // of the program, so it is reproducible
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.at.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}
	out, err := os.Create(r.name(t, ".cdx.json"))
	if err != nil {
		return err
	}
	encoder := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	return errors.Join(encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6), out.Close())
}

func component(m *debug.Module) cyclonedx.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	url := "pkg:golang/" + m.Path + "@" + m.Version
	return cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
		PackageURL: url, Properties: &[]cyclonedx.Property{{Name: "go.sum", Value: m.Sum}}}
}
