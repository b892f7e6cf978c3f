package stream_test

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// The numbers are those of zlib's crc32, in any language.
func TestPartition(t *testing.T) {
	k := newKeys(t, 16)
	for key, want := range map[string]int{
		"user:42": 6, "a": 3, "user": 9, "é": 14,
		"{a}:x": 3, "b{a}c": 3, "x{a}": 3, "{user}:1": 9, "{user}:2": 9, // the tag
		"{}": 3, "{}a": 6, "x{}{a}": 6, "{a": 12, "a}": 8, "}a{": 3, // no tag: the whole key
	} {
		if got := k.Partition(key); got != want {
			t.Errorf("%q is in partition %d, want %d", key, got, want)
		}
	}
	for partitions, want := range map[int]int{1: 0, 2: 0, 3: 1, 16: 6, 4096: 3462} {
		if got := newKeys(t, partitions).Partition("user:42"); got != want {
			t.Errorf("user:42 of %d partitions is in %d, want %d", partitions, got, want)
		}
	}
}

func TestNewKeys(t *testing.T) {
	for _, c := range []struct {
		prefix     string
		partitions int
		says       string
	}{
		{"sc", 16, ""},
		{"0", 4096, ""},
		{"a_b-c", 16, ""},
		{strings.Repeat("a", 32), 16, ""},
		{strings.Repeat("a", 33), 16, "prefix"},
		{"", 16, `prefix ""`},
		{"SC", 16, `prefix "SC"`},
		{"-a", 16, "prefix"},
		{"_a", 16, "prefix"},
		{"a.b", 16, "prefix"},
		{"a:b", 16, "prefix"},
		{"a{1}", 16, "prefix"},
		{"a*", 16, "prefix"},
		{"a\n", 16, "prefix"},
		{"sc", 0, "partitions 0"},
		{"sc", 4097, "partitions 4097: expected 1 to 4096"},
	} {
		_, err := stream.NewKeys(c.prefix, c.partitions)
		if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("NewKeys(%q, %d): error %v, want it to say %q", c.prefix, c.partitions, err, c.says)
		}
	}
}

// The names are a contract with producers in other languages.
func TestKeyNames(t *testing.T) {
	k, err := stream.NewKeys("sc", 16)
	testkit.Must(t, err)
	for got, want := range map[string]string{
		k.Events(3):                   "sc:{3}:events",
		k.Counter(3, "log", "user:1"): "sc:{3}:log:user:1",
		k.Levels(15):                  "sc:{15}:levels",
		k.Due(0):                      "sc:{0}:due",
		k.Outbox(0):                   "sc:{0}:outbox",
		k.Dead(0):                     "sc:{0}:dead",
		k.Relay(0):                    "sc:{0}:relay",
		k.Meta():                      "sc:meta",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
