package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: rules, a line of dashes, and what is asked under them, one step a line:
//
//	> GET /v1/check?key=a     a request, with its body after the target, and the answer below it
//	: Idempotency-Key: x      a header of the request above; Peer and Local are the ends of its connection, and
//	                          X-Request-Id without a value leaves it out
//	< 200 {…}                 the answer, broken into lines
//	$ Retry-After: 60         a header of the answer
//	other > GET …             the same of a second process, which has heard of all overrides
//	gone > GET …              the same of a process whose Redis is away
//	guarded > GET …           the same with the tokens of access's example file; a header has one as TOKEN:name
//	senders GET /v1/top: …    the same with each of the tokens and without one: who is answered with what
//	logged …                  what the last requests have written to the log
//	used user:1: 9            what a key has used of its first window
//	events a 5, b 1           what has been appended since the last such line: key, count, and id if there is one
//	outbox user:1: …          what is to be published of a key
//	advance 12s               time passes
//	sweep                     a worker comes by
//	metrics events{} 2, …     the counters of this process and of the one whose Redis is away
//	lives k: 10m0s            how long Redis keeps the memory of an Idempotency-Key, rounded up to minutes
//	foreign events user:1 …   Redis has this text in place of the events of a key's partition, or of what an
//	                          Idempotency-Key remembers; foreign list idempotency k a list
//	overview 10               the lists of the page, with up to so many entries
//	activity user 2+1         checks of a rule that were admitted and denied, published as the page reads them
//
// MADE is a request id that the server made. {{a 500}} means "a" 500 times. A body or header in quotes is a Go string.
// You write the requests and the other steps; go test ./check/httpapi -run Stories -update writes the answers. A
// reviewer reads them. They are compared with openapi.json too.
type story struct {
	*world
	t       *testing.T
	other   *world
	gone    *world
	guarded *world
	rules   []*windows.Rule
	ids     []string // of reservations and leases: the first is called ID1
	log     bytes.Buffer
	out     []string
}

func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, path, rules string, steps []string) []string {
		return tell(t, streamtest.AnyRedis(t), path, rules, steps)
	})
}

func tell(t *testing.T, c redis.UniversalClient, path, rules string, steps []string) []string {
	parsed, err := windows.Parse(path, []byte(rules))
	testkit.Must(t, err)
	s := &story{t: t, rules: parsed.List()}
	s.world = newWorldWith(t, c, func(_ *check.Config, h *httpapi.Config) { h.Extractors = newExtractors(t) },
		s.rules...)
	s.other = sharing(t, s.world, s.rules...)
	s.gone = newWorld(t, streamtest.Connect(t, nobody), s.rules...)
	s.described, s.other.described, s.gone.described = true, true, true
	s.ctx = httpapi.WithLog(t.Context(), slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
	s.guarded = &world{described: true, handler: httpapi.NewRouter(newTokens(t), s.server.Routes(nil)...), ctx: s.ctx}
	s.gone.ctx = s.ctx
	s.gone.handler = httpapi.NewRouter(nil, s.gone.server.Routes(func(context.Context) error {
		return errors.New("not reached")
	})...)
	s.tell(steps)
	return s.out
}

func (s *story) tell(lines []string) {
	var last answer
	for i, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "<", ":": // written with the request
			continue
		case "":
			if strings.HasPrefix(line, " ") {
				continue // an answer goes on
			}
		case ">":
			last = s.ask(s.world, line, rest, lines[i+1:])
			continue
		case "other":
			testkit.Must(s.t, s.other.overrides.Poll(s.t.Context()))
			last = s.ask(s.other, line, strings.TrimPrefix(rest, "> "), lines[i+1:])
			continue
		case "gone":
			last = s.ask(s.gone, line, strings.TrimPrefix(rest, "> "), lines[i+1:])
			continue
		case "guarded":
			last = s.ask(s.guarded, line, strings.TrimPrefix(rest, "> "), lines[i+1:])
			continue
		case "senders":
			line = s.senders(strings.TrimSuffix(rest, ":"))
		case "logged":
			line = strings.ReplaceAll(strings.TrimSpace("logged "+s.log.String()), "\n", "\n   ")
			s.log.Reset()
		case "$":
			name, _, _ := strings.Cut(rest, ":")
			line = strings.TrimSuffix("$ "+name+": "+last.header.Get(name), " ")
		case "used":
			key := rest[:strings.LastIndex(rest, ":")]
			line = fmt.Sprintf("used %s: %d", key, s.used(s.t, key))
		case "events":
			line = "events " + s.takeEvents()
		case "outbox":
			key := rest[:strings.Index(rest, ": ")]
			line = "outbox " + key + ": " + strings.Join(s.outbox(s.t, key), ", ")
		case "advance":
			d, err := time.ParseDuration(rest)
			testkit.Must(s.t, err)
			s.advance(d)
		case "sweep":
			s.sweep()
		case "lives":
			key, _, _ := strings.Cut(rest, ":")
			ttl := s.redis.PTTL(s.t.Context(), s.keys.Idempotency(s.keys.Partition(key), key)).Val()
			line = fmt.Sprintf("lives %s: %s", key, (ttl + time.Minute - 1).Truncate(time.Minute))
		case "foreign":
			s.foreign(strings.SplitN(rest, " ", 3))
		case "overview":
			s.out = append(append(s.out, line), broken("< "+s.overview(rest))...)
			continue
		case "activity":
			line = "activity" + s.published()
		case "metrics":
			s.out = append(s.out, broken("metrics "+s.metrics())...)
			continue
		default:
			if word != "#" {
				s.t.Fatalf("no such step: %s", line)
			}
		}
		s.out = append(s.out, line)
	}
}

// ask sends a request and writes it down with its answer.
func (s *story) ask(w *world, line, request string, after []string) answer {
	s.t.Helper()
	s.out = append(s.out, line)
	var headers []string
	id := "X-Request-Id: story"
	for _, h := range after {
		if !strings.HasPrefix(h, ": ") {
			break
		}
		s.out = append(s.out, h)
		header := s.written(h[len(": "):])
		if strings.HasPrefix(header, "X-Request-Id") {
			id = ""
		}
		if header != "X-Request-Id" {
			headers = append(headers, header)
		}
	}
	if id != "" {
		headers = append(headers, id)
	}
	for i, id := range s.ids {
		request = strings.ReplaceAll(request, fmt.Sprint("ID", i+1), id)
	}
	method, target, _ := strings.Cut(request, " ")
	target, body, _ := strings.Cut(target, " ")
	a := w.do(s.t, method, s.written(target), s.written(body), headers...)
	if id := a.str("id"); id != "" && a.status < 300 && !slices.Contains(s.ids, id) {
		s.ids = append(s.ids, id)
	}
	text := strings.ReplaceAll(strings.TrimSpace(a.text), `,"request_id":"story"`, "")
	if made := a.header.Get("X-Request-Id"); len(made) >= 20 && !slices.Contains(headers, "X-Request-Id: "+made) {
		text = strings.ReplaceAll(text, made, "MADE")
		a.header.Set("X-Request-Id", "MADE")
	}
	for i, id := range s.ids {
		text = strings.ReplaceAll(text, id, fmt.Sprint("ID", i+1))
		text = strings.ReplaceAll(text, id[:min(40, len(id))], fmt.Sprint("ID", i+1)) // as api.Shorten has it
	}
	s.out = append(s.out, broken(strings.TrimSpace(fmt.Sprintf("< %d %s", a.status, text)))...)
	return a
}

var tokens = strings.NewReplacer("TOKEN:checker", checker, "TOKEN:appender", appender, "TOKEN:reader", reader,
	"TOKEN:operator", operator)

// senders asks with each token, in each header that may have it, and returns who is answered with what.
func (s *story) senders(request string) string {
	method, target, _ := strings.Cut(request, " ")
	target, body, _ := strings.Cut(target, " ")
	with := map[string][][]string{"nobody": {nil}, "basic": {{"Authorization: Basic " + operator}},
		"apikey": {{"X-Api-Key: " + operator}}}
	for who, token := range map[string]string{"checker": checker, "appender": appender, "reader": reader,
		"operator": operator, "stranger": "stranger-0123456789"} {
		with[who] = [][]string{{"Authorization: bearer " + token},
			{access.TokenHeader + ": " + token, "Authorization: Bearer of-the-application"}}
	}
	answers := map[string][]string{}
	for _, who := range slices.Sorted(maps.Keys(with)) {
		for _, headers := range with[who] {
			a := s.guarded.do(s.t, method, target, body, headers...)
			told := strings.TrimSpace(fmt.Sprint(a.status, " ", a.header.Get("WWW-Authenticate")))
			if list := answers[told]; !slices.Contains(list, who) {
				answers[told] = append(list, who)
			}
		}
	}
	out := "senders " + request + ":"
	for _, told := range slices.Sorted(maps.Keys(answers)) {
		out += fmt.Sprintf("\n   %s: %s", told, strings.Join(answers[told], " "))
	}
	return out
}

// written returns what a text of a story means.
func (s *story) written(text string) string {
	text = testkit.Repeat(tokens.Replace(text))
	if strings.HasPrefix(text, `"`) {
		var err error
		text, err = strconv.Unquote(text)
		testkit.Must(s.t, err)
	}
	return text
}

// broken breaks a line of JSON after commas.
func broken(line string) (lines []string) {
	const width = 118
	for len(line) > width {
		at := strings.LastIndexAny(line[:width], ",{[ ")
		if at < 10 {
			break
		}
		lines, line = append(lines, strings.TrimRight(line[:at+1], " ")), "   "+line[at+1:]
	}
	return append(lines, line)
}

// takeEvents returns what has been appended, and removes it.
func (s *story) takeEvents() string {
	var list []string
	for text, n := range s.appended(s.t) {
		for range n {
			list = append(list, text)
		}
	}
	for _, p := range s.keys.All() {
		testkit.Must(s.t, s.redis.Del(s.t.Context(), s.keys.Events(p)).Err())
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// published publishes what was recorded, and returns it.
func (s *story) published() (out string) {
	testkit.Must(s.t, s.activity.Publish(s.t.Context()))
	testkit.Must(s.t, s.redis.HSet(s.t.Context(), s.keys.Processes(), "serve test", "announced").Err())
	got, err := activity.Gather(s.t.Context(), s.redis, s.keys)
	testkit.Must(s.t, err)
	counts := got.Processes[0].Counts
	for _, rule := range slices.Sorted(maps.Keys(counts)) {
		out += fmt.Sprintf(" %s %d+%d", rule, counts[rule].Allowed, counts[rule].Denied)
	}
	return out
}

// foreign writes something foreign into Redis.
func (s *story) foreign(words []string) {
	ctx, list := s.t.Context(), words[0] == "list"
	if list {
		words = words[1:]
	}
	name := s.keys.Events(s.keys.Partition(words[1]))
	if words[0] == "idempotency" {
		name = s.keys.Idempotency(s.keys.Partition(words[1]), words[1])
	}
	testkit.Must(s.t, s.redis.Del(ctx, name).Err())
	if list {
		testkit.Must(s.t, s.redis.LPush(ctx, name, "a").Err())
		return
	}
	testkit.Must(s.t, s.redis.Set(ctx, name, strings.Join(words[2:], ""), 0).Err())
}

func (s *story) overview(rows string) string {
	n, err := strconv.Atoi(rows)
	testkit.Must(s.t, err)
	got, err := s.server.OverviewInTurn(s.t.Context(), n)
	testkit.Must(s.t, err)
	text, err := json.Marshal(got)
	testkit.Must(s.t, err)
	return string(text)
}

func (s *story) metrics() string {
	var list []string
	for _, w := range []*world{s.world, s.gone} {
		for name, n := range w.counted(s.t) {
			list = append(list, fmt.Sprint(name, " ", n))
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// sweep does what workers do with what is due.
func (s *story) sweep() {
	counter := counters.New(s.redis, s.keys)
	counter.Now = s.clock.Load
	loaded, err := windows.NewRules(s.rules)
	testkit.Must(s.t, err)
	for p := range s.keys.Partitions {
		fields, err := counter.DueRecords(s.t.Context(), p, s.clock.Load(), 100)
		testkit.Must(s.t, err)
		_, _, err = reservations.New(counter).Sweep(s.t.Context(), p, loaded.With(s.overrides), fields)
		testkit.Must(s.t, err)
	}
	testkit.Must(s.t, s.overrides.Poll(s.t.Context()))
}

// counted returns the counters of the registry: name and labels → value.
func (w *world) counted(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := w.registry.Gather()
	testkit.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if c := m.GetCounter(); c != nil {
				got[strings.TrimPrefix(f.GetName(), "streamcounter_")+"{"+strings.Join(labels, " ")+"}"] = c.GetValue()
			}
		}
	}
	return got
}
