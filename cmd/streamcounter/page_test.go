package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

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

// spend sends checks, as callers do.
func (d *devServer) spend(key string, cost int, token string) int {
	d.t.Helper()
	code, _ := answered(d.t, http.DefaultClient, "GET",
		fmt.Sprintf("%s/v1/check?key=%s&cost=%d", d.url(), key, cost), token)
	return code
}

// reserve takes a slot until the test ends.
func (d *devServer) reserve(key string) {
	d.t.Helper()
	resp, _ := call(d.t, http.DefaultClient, "POST", d.url()+"/v1/reservations",
		fmt.Sprintf("{\"key\":%q,\"cost\":1,\"ttl_ms\":300000}", key), "Authorization: Bearer "+pageAdmin)
	if resp.StatusCode != http.StatusCreated {
		d.t.Errorf("a reservation: %s", resp.Status)
	}
}

const pageRules = `
rules:
  - {name: api, match: "user:*", windows: [{limit: 100, per: 1m}, {limit: 1000, per: 1h}], alerts: [80%, 95%]}
  - {name: web, match: "ip:*", windows: [{limit: 300, per: 1m}]}
  - {name: job, match: "job:*", windows: [{limit: 3, in_flight: 5m}]}
  - {name: stricter, match: "user:*", windows: [{limit: 50, per: 1m}], shadow: true}
`

// The questions of an operator on call, answered in a real browser: which keys are throttled and why, which key is
// busiest, what happened to a key; block it and see it blocked; is anything behind?
func TestPage(t *testing.T) {
	streamtest.Program(t, "chromium")
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", pageRules), "--tokens",
		testkit.WriteFile(t, "tokens.yml", pageTokens))
	base := d.url()
	if !strings.Contains(d.text(), "the page at /") {
		t.Errorf("the start does not tell of the page: %s", d.text())
	}
	b := openBrowser(t, base)
	for range 3 {
		d.spend("user:42", 40, pageAdmin)
	}
	d.spend("user:42", 20, pageAdmin)
	d.spend("user:7", 81, pageAdmin)
	d.spend("ip:203.0.113.9", 3, pageAdmin)
	for range 2 {
		d.reserve("job:1")
	}

	b.do(chromedp.Navigate(base + "/"))
	b.do(chromedp.WaitVisible(css("#token")))
	if all := b.text("body"); strings.Contains(all, "user:") || strings.Contains(all, "prefix") {
		t.Errorf("without a token the page shows %s", all)
	}
	b.wantContrast("login")
	b.do(chromedp.SendKeys(css("#token"), "wrong-0123456789ab"+kb.Enter))
	b.see("#tokenproblem", "not known")
	b.do(chromedp.SendKeys(css("#token"), "wr\u20acng-0123456789ab"+kb.Enter))
	b.see("#tokenproblem", "only printable ASCII")
	b.login(pageReader)

	t.Logf("loaded in %.0f ms", evaluate[float64](b, "performance.getEntriesByType('navigation')[0].loadEventEnd"))
	b.see("#throttled", "100 of 100 per 1m")
	b.see("#throttled", "user:42")
	b.see("#throttled .count", "1")
	b.see("#throttled", "in ") // a countdown
	b.see("#now", "api 1")
	b.see("#now", "shadow rules would throttle 2")
	b.see("#top", "user:42")
	b.see("#rules", "would throttle 2 keys now")
	b.see("#behind", "None")
	b.see("#near", "81 of 100 per 1m")
	b.see("#reserved", "2 of 3 in flight")
	b.see("#overrides", "token of the scope admin")
	b.see("#partitions", "0 of 16")
	b.see("#health", "Workers 1 running")
	b.see("#health", "NATS connected")
	b.see("#health", "on_error not in force")
	if all := b.text("#throttled"); strings.Contains(all, "stricter") {
		t.Errorf("a shadow rule is among those that are enforced: %s", all)
	}
	d.spend("user:9", 100, pageAdmin)
	b.see("#feed", "user:9")
	b.see("#throttled", "user:9")
	if plots := evaluate[int](b, "document.querySelectorAll('#trend svg[role=img] path.line').length"); plots < 4 {
		t.Errorf("the plots have %d lines", plots)
	}
	b.wantContrast("overview")

	b.seeShadows()
	// By keyboard: open a key from the search box. A reader may look, and change nothing.
	b.do(chromedp.Focus(css("#key")), chromedp.SendKeys(css("#key"), "user:42"+kb.Enter))
	b.see("#windows", "100 of 100")
	b.see("#history", "throttled")
	b.see("h1", "throttled")
	if b.text("#operate") != "" {
		t.Error("a reader is offered to change keys")
	}
	b.do(chromedp.Click(css("#logout")))
	b.login(pageAdmin)
	b.do(chromedp.SetValue(css("#reason"), "abuse"),
		chromedp.Click(css("#block")), chromedp.WaitVisible(css("#confirm")))
	b.do(chromedp.SendKeys(css("#confirm"), kb.Enter))
	b.see("#outcome", "Blocked for 1h")
	b.see("h1", "blocked")
	b.see("#history", "blocked until")
	b.see("#history", "by alice, abuse")
	if motion := b.motion(); motion != "0s" {
		t.Errorf("with prefers-reduced-motion bars move for %s", motion)
	}
	if code := d.spend("user:42", 1, pageAdmin); code != http.StatusTooManyRequests {
		t.Errorf("a check of the blocked key: %d", code)
	}
	b.wantContrast("key")
	b.press("#clear")
	b.do(chromedp.WaitVisible(css("#confirm")), chromedp.Click(css("#confirm")))
	b.see("#outcome", "removed")
	b.press("#clear")
	b.press("#confirm")
	b.see("#outcome", "There was no override.")
	b.press("#reset")
	b.do(chromedp.WaitVisible(css("#confirm")), chromedp.Click(css("#confirm")))
	b.see("#windows", "0 of 100")
	b.see("h1", "admitted")

	b.seeUnruled()
	d.spend("ip:203.0.113.9", 3, pageAdmin) // on a slow machine the first counts have left the window
	b.blockNetwork()
	b.leaveAndReturn()
	d.spend("user:9", 100, pageAdmin)
	b.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	b.do(chromedp.Navigate(base + "/#/"))
	b.see("#throttled", "user:9")
	if wide := evaluate[float64](b, "document.documentElement.scrollWidth"); wide > 390 {
		t.Errorf("on a phone of 390 pixels the page is %g wide", wide)
	}
	b.wantContrast("phone")
	b.do(chromedp.EmulateViewport(1360, 900))

	// The server stops, and starts again at the same address.
	if code := d.interrupt(); code != 0 || strings.Contains(d.text(), "cut off") {
		t.Errorf("with the page open the server ended with %d: %s", code, d.text())
	}
	b.see("#link", "No connection")
	startProgram(t, d.args...).until("Ctrl-C stops it.")
	b.see("#link", "Live")
	b.see("#throttled", "Nobody is throttled")
	b.quiet("401", "404", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "429")
}

// seeShadows opens by keyboard what shadow rules would do, and then the keys of one rule.
func (b *browser) seeShadows() {
	b.t.Helper()
	b.do(chromedp.Focus(css("input[value=enforced]")), chromedp.SendKeys(css("input[value=enforced]"), kb.ArrowRight))
	b.see("#throttled h2", "Keys that shadow rules would throttle")
	b.see("#throttled .count", "3")
	b.see("#throttled", "stricter")
	b.see("#feed", "would be throttled")
	b.wantContrast("shadow")
	b.do(chromedp.Focus(css("input[value=shadow]")), chromedp.SendKeys(css("input[value=shadow]"), kb.ArrowLeft),
		chromedp.Focus(css("#rule")), chromedp.SendKeys(css("#rule"), "web"))
	b.see("#throttled", "Nobody is throttled")
	b.do(chromedp.SendKeys(css("#rule"), kb.Home))
	b.see("#throttled", "user:9")
	b.press("#range")
	b.see("#trend", "one point a minute")
}

// leaveAndReturn hides the tab for a while: it leaves its connection to others, because a browser has six for a server.
func (b *browser) leaveAndReturn() {
	b.t.Helper()
	for _, step := range []struct {
		hidden bool
		state  string
	}{{true, "Paused"}, {false, "Live"}} {
		evaluate[bool](b, fmt.Sprintf("(Object.defineProperty(document, 'hidden', {value: %t, configurable: true}), "+
			"document.dispatchEvent(new Event('visibilitychange')))", step.hidden))
		b.see("#link", step.state)
	}
}

// seeUnruled opens a key that nothing limits: the page says so, and offers only actions that have an effect.
func (b *browser) seeUnruled() {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + "/#/key/nobody:1"))
	b.see("h1", "no rule")
	b.see(".notice", "No rule matches this key")
	b.see("#operate", "Block")
	if all := b.text("#operate"); strings.Contains(all, "Set limit") || strings.Contains(all, "Reset") {
		b.t.Errorf("for a key without a rule the page offers %s", all)
	}
	b.do(chromedp.Navigate(b.base + "/#/key/user:42"))
	b.see("#windows", "0 of 100")
}

// blockNetwork raises the limit of a key, and blocks a network; each dialog first shows what would change.
func (b *browser) blockNetwork() {
	b.t.Helper()
	b.press("#setlimit")
	b.see("dialog", "Limit user:42 to 1,000 per 1m for 1h? It replaces 100 per 1m. It keeps 1000 per 1h.")
	b.press("#confirm")
	b.see("#outcome", "Limited to 1,000 per 1m for 1h.")
	b.press("#clear")
	b.press("#confirm")
	b.see("#outcome", "removed")
	b.do(chromedp.Focus(css("#key")), chromedp.SendKeys(css("#key"), "ip:203.0.113.0/24"+kb.Enter))
	b.see(".notice", "all keys that it covers")
	b.press("#block")
	b.see("dialog", "It covers 1 known key, 0 of them throttled.")
	b.press("#confirm")
	b.see("#outcome", "Blocked for 1h")
	b.see("#history", "blocked until")
	b.do(chromedp.Navigate(b.base + "/#/key/ip:203.0.113.9"))
	b.see("h1", "blocked")
	b.do(chromedp.Navigate(b.base + "/#/"))
	b.see("#overrides", "ip:203.0.113.0/24 (network)") // and not the key of this name
	b.do(chromedp.Navigate(b.base + "/#/key/user:42"))
	b.see("#windows", "0 of 100")
}

// The page of a server without Redis shows the outage, and what on_error decided meanwhile.
func TestPageWhileRedisIsAway(t *testing.T) {
	own, at := streamtest.OwnRedis(t), testkit.FreeAddr(t)
	d := &devServer{at: at, process: startProgram(t, "serve", "--redis", own.URL(), "--rules",
		testkit.WriteFile(t, "rules.yml", pageRules), "--http", at)}
	d.until("ready")
	b := openBrowser(t, d.url())
	b.do(chromedp.Navigate(b.base + "/"))
	b.see("#health", "Redis answers in")
	b.see("#health", "NATS not used by this server")
	b.see("#health", "Workers none")
	own.Stop()
	b.see("#health", "Redis does not answer")
	for range 10 {
		d.spend("user:1", 1, "")
	}
	b.see("#onerror", "allowed without counting, 0 denied")
	b.see("#health", "on_error in force")
	b.wantContrast("away")
	own.Start()
	streamtest.Eventually(t, "on_error ends", func() (bool, string) {
		d.spend("user:1", 1, "")
		got := b.text("#health")
		return strings.Contains(got, "on_error not in force") && strings.Contains(got, "Redis answers in"), got
	})
	b.quiet("ERR_INCOMPLETE_CHUNKED_ENCODING")
}

// A key is shown as text: markup in it has no effect.
func TestPageShowsKeysAsText(t *testing.T) {
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml",
		"rules:\n  - {name: all, match: \"*\", windows: [{limit: 1, per: 1m}]}\n"))
	base := d.url()
	b := openBrowser(t, base)
	key := `<img  src=x onerror="document.title='owned'">/../#?%2e`
	d.spend(url.QueryEscape(key), 1, "")
	b.do(chromedp.Navigate(base + "/"))
	b.see("#foot", "Times are of ")
	b.see("#throttled", key)
	b.see("#overrides", "None is set.")
	evaluate[bool](b, `(fetched = window.fetch, window.fetch = (path, ...more) => path.startsWith("/v1/overrides?") ?
		Promise.resolve(new Response('{"detail": "no list"}', {status: 503})) : fetched(path, ...more), true)`)
	b.see("#overrides", "no list")
	if all := b.text("#overrides"); strings.Contains(all, "None is set.") {
		t.Errorf("a list that is not known is empty: %s", all)
	}
	b.do(chromedp.Click(css("#throttled a")))
	b.see("h1", key)
	b.see("#windows", "1 of 1")
	b.see("#history", "throttled")
	for _, row := range []struct{ typed, kind string }{
		{"user:12/5", "key"}, {"dead:beef/64", "key"}, {"v:1.2/3", "key"}, {"10.0.0.0/8", "match"},
		{"ip:10.0.0.0/8", "match"}, {"ip6:2001:db8::/32", "match"}, {"net-203.0.113/24", "match"}, {"user:*", "match"},
	} {
		to := evaluate[string](b, fmt.Sprintf(`(document.getElementById("key").value = %q,
			document.getElementById("find").requestSubmit(), location.hash)`, row.typed))
		if !strings.HasPrefix(to, "#/"+row.kind+"/") {
			t.Errorf("%s in the box leads to %s, not to a %s", row.typed, to, row.kind)
		}
	}
	b.do(chromedp.Navigate(base + "/#/key/..")) // a step in a path, for a browser
	b.see("#windows", "streamcounter keys show ..")
	b.press("#block")
	b.press("#confirm")
	b.see("#outcome", "Blocked for 1h")
	b.see("#history", "blocked until")
	b.see(".notice", "Override: blocked")
	b.quiet("400", "404") // what is no network, and no override of a pattern
}

// Twenty thousand throttled keys and thousands of transitions: the page lists some of them, and does not grow.
func TestPageUnderLoad(t *testing.T) {
	streamtest.Program(t, "chromium")
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", pageRules))
	c, keys, now := streamtest.Connect(t, d.redis), keysOf(t, "sc"), time.Now().UnixMilli()
	pipe := c.Pipeline()
	for i := range 20_000 {
		key, until := fmt.Sprintf("user:%06d", i), now+3_600_000+int64(i)
		pipe.HSet(t.Context(), keys.Levels(keys.Partition(key)), key, fmt.Sprintf(
			"api;sliding-log;%d|60000,100,%d,%d,100@%d!60000,100,%d,%d,1000,0", now, until, now, now, now, until))
	}
	_, err := pipe.Exec(t.Context())
	testkit.Must(t, err)
	b := openBrowser(t, d.url())
	b.do(chromedp.Navigate(b.base + "/"))
	b.see("#throttled", "user:000000")
	b.see("#throttled h2", "20,000")
	b.do(chromedp.Click(css("#throttled .pager button:last-child")))
	b.see("#throttled", "user:000050")
	publisher, err := alerts.NewPublisher(streamtest.ConnectNATS(t, d.nats), alerts.PublisherConfig{Prefix: "sc"})
	testkit.Must(t, err)
	some := make([]api.Transition, 4000)
	for i := range some {
		some[i] = api.Transition{Rule: "api", Key: fmt.Sprintf("flood:%d", i), State: api.StateThrottled, Level: 100,
			Limit: 100, WindowMs: 60_000, Used: 100, Version: now, AtMs: now, SinceMs: now, UntilMs: now + 60_000,
			ExpiresMs: now + 61_000}
	}
	testkit.Must(t, publisher.Publish(t.Context(), some, 0))
	b.see("#feed", "flood:3999")
	if n := evaluate[int](b, "document.querySelectorAll('#feed li').length"); n > 40 {
		t.Errorf("the feed has %d lines", n)
	}
	if n := evaluate[int](b, "document.querySelectorAll('*').length"); n > 2500 {
		t.Errorf("the page has %d elements", n)
	}
	b.quiet()
}
