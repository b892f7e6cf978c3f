package config

import (
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
)

func entriesOf(list ...string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for i := 0; i < len(list); i += 2 {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: list[i], Value: list[i+1]})
	}
	return d
}

func TestKey(t *testing.T) {
	for _, c := range []struct {
		domain, tag string
		entries     []string
		want        string
	}{
		{"edge", "", nil, "edge"},
		{"edge", "", []string{"path", "a"}, "edge/path=a"},
		{"edge", "tenant", []string{"tenant", "acme", "path", "a"}, "edge/{tenant=acme}/path=a"},
		{"edge", "tenant", []string{"path", "a", "tenant", "acme", "tenant", "b"},
			"edge/path=a/{tenant=acme}/tenant=b"},
		{"edge", "absent", []string{"path", "a"}, "edge/path=a"},
		{"e/d", "", []string{"a=b", "c{d}e;f%g~h"}, "e%2Fd/a%3Db=c%7Bd%7De%3Bf%25g%7Eh"},
		{"edge", "", []string{"k", "ü\x00\n\x7f\u0085\xff\xc3\ufffd"}, "edge/k=ü%00%0A%7F%C2%85%FF%C3%EF%BF%BD"},
		{"edge", "", []string{"", ""}, "edge/="},
		{"streamcounter", "", []string{"key", "user:42/{x}"}, "user:42/{x}"},
		{"streamcounter", "", []string{"key", "a", "key", "b"}, "streamcounter/key=a/key=b"},
		{"streamcounter", "", []string{"user", "a"}, "streamcounter/user=a"},
	} {
		if got := Key(c.domain, entriesOf(c.entries...), c.tag); got != c.want {
			t.Errorf("%q %q tag %q: %q, want %q", c.domain, c.entries, c.tag, got, c.want)
		}
	}
}

// tagOf returns the tag that Redis Cluster and our partitions use.
func tagOf(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// A key that is cut keeps its tag, whatever is before the tag and however long it is.
func TestCutKeysKeepTheirTag(t *testing.T) {
	x := strings.Repeat("x", 600)
	for _, tenant := range []string{"acme", strings.Repeat("é", 63), strings.Repeat("ü/", 200)} {
		want := tagOf(Key("edge", entriesOf("tenant", tenant), "tenant"))
		for _, d := range []*commonv3.RateLimitDescriptor{
			entriesOf("tenant", tenant, "path", x), entriesOf("path", x, "tenant", tenant),
			entriesOf("a", "b", "tenant", tenant, "path", x[:400]),
			entriesOf("path", x[:430], "tenant", tenant), entriesOf("path", x[:430], "tenant", tenant, "path", x),
		} {
			key := Key("edge", d, "tenant")
			if err := api.ValidateKey(key); err != nil || tagOf(key) != want || want == "" {
				t.Errorf("%q has the tag %q, want %q; %v", key, tagOf(key), want, err)
			}
		}
	}
	one, other := Key("edge", entriesOf("path", x+"1"), ""), Key("edge", entriesOf("path", x+"2"), "")
	if one == other || len(one) != 512 || one[447] != '~' || one[:447] != other[:447] {
		t.Errorf("%q\n%q", one, other)
	}
}

func TestCutKeepsCharactersAndEscapesWhole(t *testing.T) {
	for n, want := range map[int]string{-1: "", 0: "", 1: "", 2: "é", 3: "é", 4: "é", 5: "é%2F", 6: "é%2Fx",
		9: "é%2Fx"} {
		if got := string(cut([]byte("é%2Fx"), n)); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}
