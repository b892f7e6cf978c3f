package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Any bytes as a configuration: an error, or limits whose rules are good. (That these agree with what Find finds is a
// property, TestKeysFitTheirRule.)
func FuzzConfig(f *testing.F) {
	for _, pattern := range []string{"testdata/working/*", "testdata/busted_*.yml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal(err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, "client")
		}
	}
	f.Add([]byte("domain: d\ndescriptors: &a [{key: k, descriptors: *a}]"), "")
	f.Add([]byte("domain: d\ndescriptors:\n- &x {key: k, rate_limit: &l {unit: day, requests_per_unit: 1}, "+
		"descriptors: [{key: j, rate_limit: *l}, {key: j, value: '*', rate_limit: *l}]}"), "j")
	f.Fuzz(func(t *testing.T, data []byte, tag string) {
		if len(data) > 16<<10 || len(tag) > maxTagName {
			return
		}
		l, err := parse([]reload.File{{Path: "f.yaml", Data: data}}, Options{Tag: tag})
		if err != nil {
			return
		}
		if _, err := windows.NewRules(l.rules.List()); err != nil && len(l.rules.List()) > 0 {
			t.Fatal(err)
		}
	})
}

// Any descriptor: its keys are valid and at most 512 bytes, and if a limit is found, its rule matches the key.
func FuzzDescriptor(f *testing.F) {
	f.Add("edge", "client", "a", "plan", "gold", "client")
	f.Add("paths", "path", "/files/\xff", "", "", "")
	f.Add("streamcounter", "key", "a", "", "", "")
	f.Add("e{d}", "a=b", "c/d;per=60s", "~", "\x00\u0085", "a=b")
	plain, err := open("testdata/working")
	if err != nil {
		f.Fatal(err)
	}
	tagged, err := open("testdata/working", Options{Tag: "client"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, domain, k1, v1, k2, v2, tag string) {
		d := entriesOf(k1, v1, k2, v2)
		if k2 == "" {
			d = entriesOf(k1, v1)
		}
		if key := Key(domain, d, tag); !isOwn(domain, d.GetEntries()) && len(tag) <= maxTagName {
			testkit.Must(t, api.ValidateKey(key))
		}
		for _, l := range []*Limits{plain, tagged} {
			limit, ok := l.Find(domain, d)
			if !ok {
				continue
			}
			testkit.Must(t, api.ValidateKey(limit.Key))
			if limit.Plan != nil && l.rules.Match(limit.Key) != limit.Plan {
				t.Fatalf("%q is %s's and fits %+v", limit.Key, limit.Plan.Rules()[0].Match, l.rules.Match(limit.Key))
			}
		}
	})
}
