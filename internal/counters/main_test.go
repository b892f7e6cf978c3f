package counters_test

import (
	"cmp"
	"flag"
	"os"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// timelines is on how many timelines each property is tried by default. The variable STREAMCOUNTER_TEST_TIMELINES and
// -rapid.checks set another number. CI tries 50 with servers, and a fifth of 20 with Go alone.
var timelines = "40"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", cmp.Or(os.Getenv("STREAMCOUNTER_TEST_TIMELINES"), timelines)); err != nil {
		panic(err)
	}
	streamtest.Main(m)
}
