package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Any bytes as a configuration: an error, or limits whose rules are good. (That these agree with what Find finds is a
// property, TestKeysFitTheirRule.)
func FuzzConfig(f *testing.F) {
	for _, pattern := range []string{"testdata/working/*", "testdata/busted_*.yml"} {
		files, err := filepath.Glob(pattern)
		testkit.Must(f, err)
		for _, name := range files {
			data, err := os.ReadFile(name)
			testkit.Must(f, err)
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
