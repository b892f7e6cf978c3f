package sinks_test

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A story is a file of testdata: sinks, a line of dashes, and steps. HOOK(NAME) is the URL of a receiver, AM that of a
// fake Alertmanager, SECRET the file of the secret, and $N the ID of alert N. Steps of the second list wait until they
// are true; a number there is expected as it is, or >N.
//
//	start PROCESS               a process starts
//	stop PROCESS, cut PROCESS   it stops cleanly, or NATS is out of its reach
//	file, secret                the sinks, or the secrets, are those of the lines that follow
//	reload PROCESS              a process reads them
//	raise KEY LEVEL [HOW]       an alert is published; it can be of a shadow rule, or expire at once (short)
//	clear KEY LEVEL             an alert is published
//	load N [KEYS]               N alerts are published, of seven keys, or raised and cleared of as many keys
//	answer NAME KEY STATUS...   a receiver answers alerts of the key so, and then takes all
//	down NAME, up NAME          a receiver takes no alert, or all
//	refuse STATUS ALERT...      Alertmanager answers so to requests with an alert, or with it alone (ALERT!)
//	delete, lose                the consumer of the sink pager is deleted, or NATS restarts without it
//	purge, unpublish, anew      the stream loses all alerts, or the newest one, or is another
//
//	ready NAME...               each of these receivers, or am, receives a new alert
//	get NAME all|N,N...         a receiver has taken these of the published alerts, in order for each key
//	taken NAME N                how many alerts a receiver has taken
//	asked NAME                  a receiver gets a request
//	text NAME TEXT              a text that it has taken
//	am ALERT                    Alertmanager has taken an alert, "user:1_80", or "-user:1_80" when it is cleared
//	post ALERT... without ALERT...
//	                            so does a request since the last start or reload, without the other alerts
//	acknowledged                the sink pager has acknowledged all
//	count PROCESS SINK OUTCOME N
//	oldest PROCESS SINK N       how old the oldest alert is that waits; -1: there is no such sink
//	logged TEXT                 the log says something
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, list string, steps []string) []string {
		y := &story{hooks: map[string]*receiver{}, processes: map[string]*process{}}
		url := streamtest.NATS(t)
		if strings.Contains(list, "On its own NATS") {
			y.server = streamtest.OwnNATS(t)
			url = y.server.URL()
		}
		y.world, y.am, y.js = newWorld(t, url), newFakeAM(t), streamtest.JetStream(t, url)
		y.file(list)
		for i, step := range steps {
			words, ok := strings.CutPrefix(step, "> ")
			if !ok {
				continue
			}
			input := ""
			for _, line := range steps[i+1:] {
				if !strings.HasPrefix(line, "  ") {
					break
				}
				input += line + "\n"
			}
			y.run(strings.Fields(words), input)
		}
		return steps
	})
}

// story is one file that is being run.
type story struct {
	*world
	server    *streamtest.Server
	js        jetstream.JetStream
	hooks     map[string]*receiver
	am        *fakeAM
	processes map[string]*process
	all       []api.Transition // that were published
	posts     int              // to Alertmanager before the last start or reload
}

func (y *story) hook(name string) *receiver {
	if y.hooks[name] == nil {
		y.hooks[name] = newReceiver(y.t)
	}
	return y.hooks[name]
}

var endpointWords = regexp.MustCompile(`HOOK\(\w+\)|\bAM\b`)

func (y *story) file(list string) {
	y.sinks(endpointWords.ReplaceAllStringFunc(list, func(text string) string {
		if text == "AM" {
			return strconv.Quote(y.am.URL)
		}
		return strconv.Quote(y.hook(text[len("HOOK(") : len(text)-1]).URL)
	}))
}

func (y *story) run(words []string, input string) {
	y.t.Helper()
	ctx, arg := y.t.Context(), append(slices.Clone(words[1:]), "", "", "", "")
	switch words[0] {
	case "start":
		y.posts = y.am.count()
		y.processes[arg[0]] = y.start()
	case "stop":
		y.processes[arg[0]].stop()
	case "cut":
		y.processes[arg[0]].nc.Close()
	case "file":
		y.file(input)
	case "secret":
		y.write("secret", strings.ReplaceAll(input, "  ", ""))
	case "reload":
		y.posts = y.am.count()
		testkit.Must(y.t, y.processes[arg[0]].file.Reload())
	case "raise", "clear":
		level, err := strconv.Atoi(arg[1])
		testkit.Must(y.t, err)
		states := map[string]api.State{"raise": api.StateRaised, "clear": api.StateCleared}
		one := y.alert(arg[0], level, states[words[0]])
		one.Shadow = arg[2] == "shadow"
		if arg[2] == "short" {
			one.ExpiresMs = one.AtMs + 1
		}
		y.all = append(y.all, y.publish(one)...)
	case "load":
		y.load(int(number(y.t, arg[0])), int(number(y.t, cmp.Or(arg[1], "0"))))
	case "answer":
		statuses := words[3:]
		y.hook(arg[0]).answers(func(key string, w http.ResponseWriter) bool {
			if key != arg[1] || len(statuses) == 0 {
				return true
			}
			w.Header().Set("Location", y.hooks["elsewhere"].URL)
			w.WriteHeader(int(number(y.t, statuses[0])))
			statuses = statuses[1:]
			return false
		})
	case "down":
		y.hook(arg[0]).answers(down)
	case "up":
		y.hook(arg[0]).answers(nil)
	case "refuse":
		y.am.answers(func(list []amAlert) int {
			for _, x := range list {
				name := strings.ReplaceAll(x.name(), " ", "_")
				if slices.Contains(words[2:], name) || len(list) == 1 && slices.Contains(words[2:], name+"!") {
					return int(number(y.t, arg[0]))
				}
			}
			return http.StatusOK
		})
	case "delete":
		testkit.Must(y.t, y.js.DeleteConsumer(ctx, y.stream(), "sink-pager"))
	case "lose":
		y.server.Stop()
		lost, err := filepath.Glob(filepath.Join(y.server.Dir(), "jetstream/*/streams", y.stream(), "obs/*"))
		testkit.Must(y.t, err)
		if len(lost) != 1 {
			y.t.Fatalf("the consumers are %s", lost)
		}
		testkit.Must(y.t, os.RemoveAll(lost[0]))
		y.server.Start()
	case "purge", "unpublish":
		stream, err := y.js.Stream(ctx, y.stream())
		testkit.Must(y.t, err)
		if words[0] == "purge" {
			testkit.Must(y.t, stream.Purge(ctx))
		} else {
			testkit.Must(y.t, stream.DeleteMsg(ctx, stream.CachedInfo().State.LastSeq))
		}
	case "anew":
		testkit.Must(y.t, y.js.DeleteStream(ctx, y.stream()))
		streamtest.Succeeds(y.t, "there are streams", func() error { return y.publisher.Ensure(ctx) })
	case "acknowledged":
		y.acknowledged(y.js)
	default:
		y.await(words, arg)
	}
}

func (y *story) load(n, keys int) {
	y.t.Helper()
	if keys == 0 {
		y.all = append(y.all, y.raised(n)...)
		return
	}
	var list []api.Transition
	for i := range n {
		state := []api.State{api.StateRaised, api.StateCleared}[i/keys%2]
		list = append(list, y.alert(fmt.Sprintf("user:%d", i%keys), 80, state))
	}
	y.all = append(y.all, y.publish(list...)...)
}

// await waits until what a step says is true.
func (y *story) await(words, arg []string) {
	y.t.Helper()
	switch words[0] {
	case "ready":
		list := []endpoint{y.am}
		if arg[0] != "am" {
			list = nil
			for _, name := range words[1:] {
				list = append(list, y.hook(name))
			}
		}
		y.ready(list...)
	case "get":
		want := y.all
		if arg[1] != "all" {
			want = nil
			for n := range strings.SplitSeq(arg[1], ",") {
				want = append(want, y.all[number(y.t, n)-1])
			}
		}
		wantInOrder(y.t, y.hook(arg[0]).awaitOf(len(want)), want)
	case "taken":
		y.is(words, func() float64 { list, _ := y.hook(arg[0]).taken(); return float64(len(of(list))) })
	case "asked":
		y.hook(arg[0]).awaitAttempt()
	case "text":
		if text := strings.Join(words[2:], " "); !strings.Contains(y.hook(arg[0]).allTexts(), text) {
			y.t.Errorf("the texts are %s, want %s", y.hook(arg[0]).allTexts(), text)
		}
	case "am":
		y.am.await(y.t, 0, alertNames(words[1:])...)
	case "post":
		i := slices.Index(words, "without")
		post := y.am.await(y.t, y.posts, alertNames(words[1:i])...)
		for _, name := range alertNames(words[i+1:]) {
			if has(post, name) {
				y.t.Errorf("%s: it is %q", words, post)
			}
		}
	case "count":
		y.is(words, func() float64 { return float64(y.processes[arg[0]].count(y.t, arg[1], arg[2])) })
	case "oldest":
		y.is(words, func() float64 { return y.processes[arg[0]].oldest(y.t, arg[1]) })
	case "logged":
		text := strings.Join(words[1:], " ")
		if n, found := strings.CutPrefix(text, "$"); found {
			text = y.all[number(y.t, n)-1].ID
		}
		streamtest.EventuallyLogged(y.t, y.log, text, 1)
	default:
		y.t.Fatalf("unknown step %q", words)
	}
}

// alertNames returns the names of alerts that a step has: user:1_80 is "user:1 80".
func alertNames(words []string) (names []string) {
	for _, word := range words {
		names = append(names, strings.ReplaceAll(word, "_", " "))
	}
	return names
}

// is waits until a number is the last word of a step.
func (y *story) is(words []string, is func() float64) {
	y.t.Helper()
	streamtest.EventuallyIs(y.t, strings.Join(words, " "), words[len(words)-1], is)
}

func number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	testkit.Must(t, err)
	return n
}
