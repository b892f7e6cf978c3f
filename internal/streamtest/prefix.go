package streamtest

import (
	"crypto/rand"
	"encoding/hex"
	"testing"
)

// Prefix returns a prefix for keys and subjects that no other test has, in this process or another: "t-" and ten hex
// digits.
func Prefix(t testing.TB) string {
	t.Helper()
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails
	return "t-" + hex.EncodeToString(b[:])
}
