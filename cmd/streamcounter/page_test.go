package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
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
	"github.com/chromedp/chromedp/kb"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const pageReader, pageAdmin = "page-reader-0123456789", "page-admin-0123456789"

const pageTokens = "tokens:\n  - {name: viewer, token: " + pageReader + ", scopes: [read]}\n" +
	"  - {name: alice, token: " + pageAdmin + ", scopes: [admin]}\n"

// A story is a file of testdata/page: rules, a line of dashes, and what callers and an operator do, one step a line.
// The operator has the page open in a real browser. SELECTOR is of CSS.
//
//	spend COST KEY          a caller checks a key; denied KEY: a check of one unit, which is denied
//	reserve KEY             a caller takes a slot until the end of the story
//	crowd N, flood N        N keys are throttled; their decisions are published
//	redis stops, redis starts; stop, start
//	                        Redis is away; the server itself
//	said TEXT               the server has said a text
//	open PATH               the operator goes to a path of the page
//	keys SELECTOR: TEXT     waits for an element and types into it; READER and ADMIN are tokens, <Enter> is a key
//	fill SELECTOR: TEXT     sets the value of an element
//	press SELECTOR          waits for an element and clicks it
//	size WIDTH HEIGHT       the screen
//	media NAME VALUE        what the user prefers
//	do SCRIPT               runs a script
//	see SELECTOR: TEXT      waits until an element shows a text
//	lacks SELECTOR: TEXT    it does not show the text now
//	is WANT: SCRIPT         the value of a script; >N and <N are numbers
//	leads TEXT HASH         the text in the box for keys leads to an address that begins so
//	contrast WHERE          all texts have enough contrast, light and dark
//	quiet TEXT...           the browser has complained of nothing but this
func TestPage(t *testing.T) {
	streamtest.Program(t, "chromium")
	testkit.StoriesIn(t, "testdata/page", func(t *testing.T, _, rules string, steps []string) []string {
		y := newPageStory(t, rules)
		return testkit.Steps(steps, "> ", func(line string) []string {
			step, rest, _ := strings.Cut(line, " ")
			if !y.serverStep(step, rest) && !y.pageStep(step, rest) {
				t.Fatalf("unknown step %q", line)
			}
			return nil
		})
	})
}

// pageStory is one file that is being run.
type pageStory struct {
	*browser
	d   *devServer
	own *streamtest.Server // Redis; nil: that of dev
}

func newPageStory(t *testing.T, rules string) *pageStory {
	t.Helper()
	file := testkit.WriteFile(t, "rules.yml", rules)
	if strings.Contains(rules, "A serve with its own Redis") {
		own, at := streamtest.OwnRedis(t), testkit.FreeAddr(t)
		p := startServe(t, "--redis", own.URL(), "--rules", file, "--http", at)
		return &pageStory{openBrowser(t, "http://"+at), &devServer{process: p, at: at}, own}
	}
	args := []string{"--rules", file}
	if strings.Contains(rules, "With tokens") {
		args = append(args, "--tokens", testkit.WriteFile(t, "tokens.yml", pageTokens))
	}
	d := startDev(t, args...)
	return &pageStory{openBrowser(t, d.url()), d, nil}
}

// serverStep does a step of a caller or of the server, and reports whether it is one.
func (y *pageStory) serverStep(step, rest string) bool {
	y.t.Helper()
	switch step {
	case "spend":
		cost, key, _ := strings.Cut(rest, " ")
		y.ask("GET", "/v1/check?cost="+cost+"&key="+url.QueryEscape(key), "", 0)
	case "denied":
		y.ask("GET", "/v1/check?key="+url.QueryEscape(rest), "", http.StatusTooManyRequests)
	case "reserve":
		y.ask("POST", "/v1/reservations", fmt.Sprintf(`{"key":%q,"ttl_ms":300000}`, rest), http.StatusCreated)
	case "crowd", "flood":
		n, err := strconv.Atoi(rest)
		testkit.Must(y.t, err)
		map[string]func(int){"crowd": y.crowd, "flood": y.flood}[step](n)
	case "redis":
		map[string]func(){"stops": y.own.Stop, "starts": y.own.Start}[rest]()
	case "stop":
		if code := y.d.interrupt(); code != 0 || strings.Contains(y.d.text(), "cut off") {
			y.t.Errorf("with the page open the server ended with %d: %s", code, y.d.text())
		}
	case "start":
		startProgram(y.t, y.d.args...).until("Ctrl-C stops it.")
	case "said":
		if !strings.Contains(y.d.text(), rest) {
			y.t.Errorf("the server has not said %q: %s", rest, y.d.text())
		}
	default:
		return false
	}
	return true
}

// ask sends a request as a caller with all rights does, and expects a status if it is not 0.
func (y *pageStory) ask(method, path, body string, want int) {
	y.t.Helper()
	resp, text := call(y.t, http.DefaultClient, method, y.base+path, body, "Authorization: Bearer "+pageAdmin)
	if want != 0 && resp.StatusCode != want {
		y.t.Errorf("%s %s: %s %s, want %d", method, path, resp.Status, text, want)
	}
}

// crowd throttles n keys.
func (y *pageStory) crowd(n int) {
	y.t.Helper()
	keys, now := keysOf(y.t, "sc"), time.Now().UnixMilli()
	pipe := streamtest.Connect(y.t, y.d.redis).Pipeline()
	for i := range n {
		key, until := fmt.Sprintf("user:%06d", i), now+3_600_000+int64(i)
		pipe.HSet(y.t.Context(), keys.Levels(keys.Partition(key)), key, fmt.Sprintf(
			"api;sliding-log;%d|60000,100,%d,%d,100@%d!60000,100,%d,%d,1000,0", now, until, now, now, now, until))
	}
	_, err := pipe.Exec(y.t.Context())
	testkit.Must(y.t, err)
}

// flood publishes the decisions of n keys.
func (y *pageStory) flood(n int) {
	y.t.Helper()
	publisher, err := alerts.NewPublisher(streamtest.ConnectNATS(y.t, y.d.nats), alerts.PublisherConfig{Prefix: "sc"})
	testkit.Must(y.t, err)
	now, list := time.Now().UnixMilli(), make([]api.Transition, n)
	for i := range list {
		list[i] = api.Transition{Rule: "api", Key: fmt.Sprintf("flood:%d", i), State: api.StateThrottled, Level: 100,
			Limit: 100, WindowMs: 60_000, Used: 100, Version: now, AtMs: now, SinceMs: now, UntilMs: now + 60_000,
			ExpiresMs: now + 61_000}
	}
	testkit.Must(y.t, publisher.Publish(y.t.Context(), list, 0))
}

var pageKeys = strings.NewReplacer("READER", pageReader, "ADMIN", pageAdmin, "<Enter>", kb.Enter, "<Home>", kb.Home,
	"<ArrowLeft>", kb.ArrowLeft, "<ArrowRight>", kb.ArrowRight)

// pageStep does a step of the operator, and reports whether it is one.
func (y *pageStory) pageStep(step, rest string) bool {
	y.t.Helper()
	first, last, _ := strings.Cut(rest, ": ")
	switch step {
	case "open":
		y.do(chromedp.Navigate(y.base + rest))
	case "keys":
		y.do(chromedp.WaitVisible(css(first)), chromedp.SendKeys(css(first), pageKeys.Replace(last)))
	case "fill":
		y.do(chromedp.SetValue(css(first), last))
	case "press":
		y.press(rest)
	case "size":
		var width, height int64
		_, err := fmt.Sscan(rest, &width, &height)
		testkit.Must(y.t, err)
		y.do(chromedp.EmulateViewport(width, height))
	case "media":
		name, value, _ := strings.Cut(rest, " ")
		y.media(name, value)
	case "do":
		evaluate[bool](y.browser, "("+rest+", true)")
	case "see":
		y.see(first, last)
	case "lacks":
		if all := y.text(first); strings.Contains(all, last) {
			y.t.Errorf("%s has %q: %s", first, last, all)
		}
	case "is":
		if got := evaluate[string](y.browser, "String("+last+")"); !isAs(y.t, first, got) {
			y.t.Errorf("%s is %s, want %s", last, got, first)
		}
	case "leads":
		typed, want, _ := strings.Cut(rest, " ")
		if got := evaluate[string](y.browser, fmt.Sprintf(`(document.getElementById("key").value = %q,
			document.getElementById("find").requestSubmit(), location.hash)`, typed)); !strings.HasPrefix(got, want) {
			y.t.Errorf("%s in the box leads to %s, not to %s", typed, got, want)
		}
	case "contrast":
		y.wantContrast(rest)
	case "quiet":
		y.quiet(strings.Fields(rest)...)
	default:
		return false
	}
	return true
}

// isAs reports whether a text is as wanted: equal, or a number that is >N or <N.
func isAs(t *testing.T, want, got string) bool {
	t.Helper()
	if want[0] != '>' && want[0] != '<' {
		return got == want
	}
	var is, bound float64
	_, err := fmt.Sscan(got+" "+want[1:], &is, &bound)
	testkit.Must(t, err)
	return is != bound && is > bound == (want[0] == '>')
}

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
