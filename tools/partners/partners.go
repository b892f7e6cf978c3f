// Package partners names the third-party programs with which streamcounter is tested, and the directory in which
// `make partners` puts those that it builds. The tests of this package start them and check how they work with
// streamcounter.
//
// It is a separate module, so that go.mod of streamcounter requires none of them. A partner is built as its authors
// build it: from its own module, with its own go.mod. Read build/main.go next.
package partners

import (
	"path/filepath"
	"runtime"
)

// A Program is a partner that is built from a Go module.
type Program struct {
	Name    string
	Module  string
	Version string
	Package string // of its main package, relative to the module
	// Siblings is the version of the modules of the same repository. go.mod replaces these modules by directories
	// that the module's archive does not contain.
	Siblings string
	LDFlags  string // set its version, as in a release
}

const (
	kubernetes = "v1.37.2"
	kubeStamp  = "-X k8s.io/component-base/version.gitVersion=" + kubernetes +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)

// Programs are built by `make partners`.
var Programs = []Program{
	{Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: "v3.7.3", Package: ".", Siblings: "v3.7.3"},
	{Name: "envoy-gateway", Module: "github.com/envoyproxy/gateway", Version: "v1.9.1", Package: "./cmd/envoy-gateway",
		LDFlags: "-X github.com/envoyproxy/gateway/internal/cmd/version.envoyGatewayVersion=v1.9.1"},
	{Name: "kube-apiserver", Module: "k8s.io/kubernetes", Version: kubernetes, Package: "./cmd/kube-apiserver",
		Siblings: "v0.37.2", LDFlags: kubeStamp},
	{Name: "kube-controller-manager", Module: "k8s.io/kubernetes", Version: kubernetes,
		Package: "./cmd/kube-controller-manager", Siblings: "v0.37.2", LDFlags: kubeStamp},
	{Name: "helm3", Module: "helm.sh/helm/v3", Version: "v3.22.0", Package: "./cmd/helm",
		LDFlags: "-X helm.sh/helm/v3/internal/version.version=v3.22.0"},
	{Name: "helm4", Module: "helm.sh/helm/v4", Version: "v4.3.1", Package: "./cmd/helm",
		LDFlags: "-X helm.sh/helm/v4/internal/version.version=v4.3.1"},
	{Name: "traefik", Module: "github.com/traefik/traefik/v3", Version: "v3.6.12", Package: "./cmd/traefik",
		LDFlags: "-X github.com/traefik/traefik/v3/pkg/version.Version=3.6.12"},
}

// Operator is the module whose definitions of ServiceMonitor and PrometheusRule the API server gets. It is the newest
// version on the module proxy.
const Operator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"

// Debian maps a program that the tests take from PATH to its Debian package.
var Debian = map[string]string{
	"redis-server":            "redis-server",
	"nginx":                   "nginx-light",
	"caddy":                   "caddy",
	"crowdsec-custom-bouncer": "crowdsec-custom-bouncer",
	"prometheus":              "prometheus",
}

// Dir is the directory of the built programs, in streamcounter's bin.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "bin", "partners")
}

// Path is the path of the built program.
func (p Program) Path() string { return filepath.Join(Dir(), p.Name+"-"+p.Version) }
