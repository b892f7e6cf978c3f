package main

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp" // drives a real Chromium over its own protocol, without a separate driver

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// browser is one tab of a headless Chromium.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu         sync.Mutex
	complaints []string // errors of the console, and refusals of the content security policy
}

var oneBrowser sync.Mutex

func openBrowser(t *testing.T, base string) *browser {
	t.Helper()
	oneBrowser.Lock() // several would be slow together
	t.Cleanup(oneBrowser.Unlock)
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(streamtest.Program(t, "chromium")), chromedp.NoSandbox, chromedp.WindowSize(1360, 900),
		chromedp.WSURLReadTimeout(time.Minute), chromedp.UserDataDir(t.TempDir()))
	all, stop := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, end := chromedp.NewContext(all)
	b := &browser{t: t, ctx: ctx, base: base}
	t.Cleanup(func() {
		if end(); t.Failed() {
			t.Logf("the browser has said %q", b.complaints)
		}
		stop()
	})
	b.do() // starts it
	testkit.Must(t, chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.complaints = append(b.complaints, e.ExceptionDetails.Text)
		case *cdplog.EventEntryAdded:
			b.complaints = append(b.complaints, string(e.Entry.Level)+": "+e.Entry.Text)
		}
	}))
	_, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
	testkit.Must(t, err)
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx := b.ctx
	if len(actions) > 0 { // the first call has none: the browser lives as long as its context
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
	}
	testkit.Must(b.t, chromedp.Do(ctx, actions...))
}

// press clicks an element by script, because a click at a position misses it when the page above it changes.
func (b *browser) press(selector string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(css(selector)))
	evaluate[bool](b, fmt.Sprintf("(document.querySelector(%q).click(), true)", selector))
}

// see waits until an element has a text. The server pauses between two readings of the throttled keys for ten times
// as long as a reading took, which can be 50 s on a busy machine.
func (b *browser) see(selector, text string) {
	b.t.Helper()
	streamtest.Eventually(b.t, selector+" shows "+text, func() (bool, string) {
		got := b.text(selector)
		return strings.Contains(got, text), got
	})
}

func (b *browser) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b, "[...document.querySelectorAll("+strconv.Quote(selector)+")]"+
		".map(e => e.innerText).join('\\n')")
}

func evaluate[T any](b *browser, script string) T {
	b.t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script))
	testkit.Must(b.t, err)
	return got
}

func css(text string) chromedp.CSS { return chromedp.CSS(text) }

// quiet fails the test if the browser complained of anything that is not expected.
func (b *browser) quiet(expected ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.complaints {
		if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(one, e) }) {
			b.t.Errorf("the browser says: %s", one)
		}
	}
}

// media sets a preference of the user, such as prefers-color-scheme: the page is light or dark.
func (b *browser) media(name, value string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: name, Value: value}}})
	testkit.Must(b.t, err)
}

func (b *browser) scheme(name string) { b.t.Helper(); b.media("prefers-color-scheme", name) }

// contrast is a script that returns what has too little contrast.
//
//go:embed testdata/contrast.js
var contrast string

func (b *browser) wantContrast(where string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		if bad := evaluate[string](b, contrast); bad != "" {
			b.t.Errorf("%s, %s: too little contrast: %s", where, scheme, bad)
		}
	}
	b.scheme("light")
}
