package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The address that comes most often in the shipped log, and rules that it passes.
const (
	pictureKey   = "ip:66.249.73.135"
	pictureRules = `
rules:
  - {name: web, match: "ip:*", windows: [{limit: 120, per: 1m}, {limit: 1000, per: 1h}], alerts: [50%, 80%]}
`
)

// The pictures of the docs, as `make pictures` takes them: the page's view of an address that is throttled while
// lines of the log are appended, 50 a second.
func TestPictures(t *testing.T) {
	dir := os.Getenv("STREAMCOUNTER_TEST_PICTURES")
	if dir == "" {
		t.Skip("the pictures of the docs are not taken: make pictures")
	}
	text, err := os.ReadFile("testdata/apache_access.log")
	testkit.Must(t, err)
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", pictureRules))
	b := openBrowser(t, d.url())
	b.do(chromedp.EmulateViewport(1200, 690), chromedp.Navigate(b.base+"/#/key/"+pictureKey))
	b.see("h1", "admitted")

	in, write, err := os.Pipe()
	testkit.Must(t, err)
	defer write.Close()
	startReading(t, in, "append", "--format", "clf", "--redis", d.redis)
	lines := bytes.SplitAfter(text, []byte("\n"))
	for second := range 60 {
		_, err := write.Write(bytes.Join(lines[50*second:50*second+50], nil))
		testkit.Must(t, err)
		<-time.After(time.Second) // the pace of the traffic, nothing waits for it
	}
	b.see("h1", "throttled")
	b.see("#history", "throttled")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "key-"+scheme+".png"), png, 0o644))
		if len(png) > 150_000 {
			t.Errorf("the %s picture has %d bytes", scheme, len(png))
		}
	}
}
