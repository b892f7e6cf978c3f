package counters_test

import (
	"cmp"
	"flag"
	"os"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// timelines is how many timelines each property is tried on. The variable STREAMCOUNTER_TEST_TIMELINES and
// -rapid.checks change it. CI tries 100.
var timelines = "40"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", cmp.Or(os.Getenv("STREAMCOUNTER_TEST_TIMELINES"), timelines)); err != nil {
		panic(err)
	}
	streamtest.Main(m)
}
