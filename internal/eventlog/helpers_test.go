package eventlog_test

import (
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

func newKeys(t testing.TB, partitions int) *stream.Keys {
	t.Helper()
	k, err := stream.NewKeys(streamtest.Prefix(t), partitions)
	testkit.Must(t, err)
	return k
}
