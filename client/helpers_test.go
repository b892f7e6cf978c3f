package client_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// patience is how long a test waits for what must come. Nothing should take that long.
const patience = 20 * time.Second
