package stream_test

import (
	"context"
	"hash/crc32"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// tagOf follows keyHashSlot of Redis's cluster.c, line by line.
func tagOf(key string) string {
	s := 0
	for s < len(key) && key[s] != '{' {
		s++
	}
	if s == len(key) {
		return key
	}
	e := s + 1
	for e < len(key) && key[e] != '}' {
		e++
	}
	if e == len(key) || e == s+1 {
		return key
	}
	return key[s+1 : e]
}

// crc16 is CRC-16/XMODEM, which Redis Cluster uses.
func crc16(text string) (crc uint16) {
	for i := range len(text) {
		crc ^= uint16(text[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// FuzzPartition: the hash tag is the same as for a real Redis (CLUSTER KEYSLOT), and
// the partition of a key depends only on its tag.
func FuzzPartition(f *testing.F) {
	for _, key := range []string{"user:42", "{a}:x", "x{a}", "{}{a}", "{}", "{a", "a}{", "}{a}", "{{a}}", "{a{b}c}",
		"{\x00}", "{é}x", "", "{\xff}", "{ }", "a{b}{c}", "b{a}c", "{a}}", "{a{b}", "{}a", "x{}{a}", "a}", "}a{",
		"a{}"} {
		f.Add(key)
	}
	c := streamtest.Connect(f, streamtest.OwnRedis(f, "--cluster-enabled", "yes").Addr())
	k := newKeys(f, stream.MaxPartitions)
	f.Fuzz(func(t *testing.T, key string) {
		tag := tagOf(key)
		slot, err := c.ClusterKeySlot(context.Background(), key).Result()
		testkit.Must(t, err)
		if want := int64(crc16(tag) % 16384); slot != want {
			t.Fatalf("%q: Redis says slot %d, its tag %q has %d", key, slot, tag, want)
		}
		if got, want := k.Partition(key), int(crc32.ChecksumIEEE([]byte(tag))%stream.MaxPartitions); got != want {
			t.Fatalf("%q, with the tag %q, is in partition %d, want %d", key, tag, got, want)
		}
	})
}
