package subscription

import (
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

func TestMain(m *testing.M) { streamtest.Main(m) }
