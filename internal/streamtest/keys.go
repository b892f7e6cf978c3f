package streamtest

import (
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// Keys returns the names of keys under Prefix.
func Keys(t testing.TB, partitions int) *stream.Keys {
	t.Helper()
	keys, err := stream.NewKeys(Prefix(t), partitions)
	testkit.Must(t, err)
	return keys
}
