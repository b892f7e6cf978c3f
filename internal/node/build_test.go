package node

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// /metrics shows the build of the process, as the command version does.
func TestBuildInfo(t *testing.T) {
	registry := prometheus.NewRegistry()
	Build{Version: "1.2.3", Commit: "abc", Go: "go1.99"}.register(registry)
	testkit.Must(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP streamcounter_build_info 1, with the version, the commit and the version of Go that the process was built with.
# TYPE streamcounter_build_info gauge
streamcounter_build_info{commit="abc",go_version="go1.99",version="1.2.3"} 1
`)))
}
