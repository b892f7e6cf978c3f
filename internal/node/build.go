package node

import "github.com/prometheus/client_golang/prometheus"

// Build describes the build of the program, for traces and /metrics.
type Build struct {
	Version string // of the program
	Commit  string // empty if not known
	Go      string // version
}

// register exposes the build on /metrics, as a gauge that is always 1. The commit is empty if it is not known.
func (b Build) register(reg prometheus.Registerer) {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_build_info",
		Help: "1, with the version, the commit and the version of Go that the process was built with."},
		[]string{"version", "commit", "go_version"})
	info.WithLabelValues(b.Version, b.Commit, b.Go).Set(1)
	reg.MustRegister(info)
}
