package windows_test

import (
	"flag"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// timelines is how many timelines each property is tried on; -rapid.checks says otherwise.
var timelines = "100"

var underRace bool

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", timelines); err != nil {
		panic(err)
	}
	streamtest.Main(m)
}
