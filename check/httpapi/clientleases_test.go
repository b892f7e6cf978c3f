package httpapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// hotRule has leases of 100 ms, and 100 units a second.
var hotRule = rule("hot", func(r *windows.Rule) { r.Lease = 100 * time.Millisecond },
	windows.Window{Limit: 100, Per: time.Second})

// lease asks for a lease, and returns the answer if there is one.
func (w *world) lease(t *testing.T, req api.LeaseRequest) (answer, api.LeaseAnswer) {
	t.Helper()
	body, err := json.Marshal(req)
	testkit.Must(t, err)
	a := w.do(t, "POST", "/v1/leases", string(body))
	var got api.LeaseAnswer
	if a.status == 200 {
		testkit.Must(t, json.Unmarshal([]byte(a.text), &got))
	}
	return a, got
}

// leased is lease, but it must be answered.
func (w *world) leased(t *testing.T, req api.LeaseRequest) api.LeaseAnswer {
	t.Helper()
	a, got := w.lease(t, req)
	wantStatus(t, a, 200)
	return got
}

func (w *world) wantUsed(t *testing.T, key string, want int64) {
	t.Helper()
	if used := w.used(t, key); used != want {
		t.Errorf("%d units of %s are used, want %d", used, key, want)
	}
}

func TestClientLeases(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), hotRule)
	const key = "hot:1"
	if a := w.post(t, `{"key":"hot:1"}`); a.num("lease_ms") != 100 {
		t.Errorf("a check does not say that the key may be leased: %s", a.text)
	}
	one := w.leased(t, api.LeaseRequest{Key: key, Want: 10})
	if one.Units != 10 || one.LeaseMs != 100 || one.NowMs != w.clock.Load() || !one.Allowed || one.Rule != "hot" ||
		len(one.Windows) != 1 || one.Windows[0].Used != 11 || one.Source != api.SourceRedis {
		t.Errorf("%+v", one)
	}
	one = w.leased(t, api.LeaseRequest{Key: key, ID: one.ID, Had: 10, Used: 4, Keep: 6, Want: 20, Least: 3})
	if one.Units != 18 { // a multiple of 3
		t.Errorf("%+v", one)
	}
	w.wantUsed(t, key, 1+4+18)
	if end := w.leased(t, api.LeaseRequest{Key: key, ID: one.ID, Had: 18, Used: 5}); end.Units != 0 || end.ID != "" ||
		end.Expired {
		t.Errorf("%+v", end)
	}
	w.wantUsed(t, key, 1+4+5)
	testkit.Must(t, w.activity.Publish(t.Context()))
	if top := w.do(t, "GET", "/v1/top?rule=hot", "").text; !strings.Contains(top, `"key":"hot:1","units":10`) {
		t.Errorf("10 units were used: %s", top)
	}

	t.Run("without room", func(t *testing.T) {
		w.post(t, `{"key":"hot:2","cost":100}`)
		none := w.leased(t, api.LeaseRequest{Key: "hot:2", Want: 5})
		if none.Units != 0 || none.ID != "" || none.RetryAfterMs != 1000 || none.Allowed || none.LeaseMs != 100 {
			t.Errorf("%+v", none)
		}
	})
	t.Run("that has expired is charged whole", func(t *testing.T) {
		old := w.leased(t, api.LeaseRequest{Key: "hot:3", Want: 7})
		w.advance(125 * time.Millisecond)
		w.leased(t, api.LeaseRequest{Key: "hot:3", Want: 1}) // settles it, as no worker does
		got := w.leased(t, api.LeaseRequest{Key: "hot:3", ID: old.ID, Had: 7, Used: 2, Keep: 5, Want: 9})
		if !got.Expired || got.Units != 0 || got.ID != "" {
			t.Errorf("%+v", got)
		}
		w.wantUsed(t, "hot:3", 7+1)
	})
	t.Run("lasts a quarter longer in Redis", func(t *testing.T) {
		old := w.leased(t, api.LeaseRequest{Key: "hot:4", Want: 7})
		w.advance(124 * time.Millisecond)
		if got := w.leased(t, api.LeaseRequest{Key: "hot:4", ID: old.ID, Had: 7, Used: 2}); got.Expired {
			t.Errorf("%+v", got)
		}
		w.wantUsed(t, "hot:4", 2)
	})
	t.Run("of a blocked key ends", func(t *testing.T) {
		old := w.leased(t, api.LeaseRequest{Key: "hot:5", Want: 7})
		wantStatus(t, w.do(t, "PUT", "/v1/overrides/hot:5", `{"block":true}`), 200)
		got := w.leased(t, api.LeaseRequest{Key: "hot:5", ID: old.ID, Had: 7, Used: 2, Keep: 5, Want: 9})
		if got.Units != 0 || got.LeaseMs != 0 || got.Override != "block" || got.Allowed {
			t.Errorf("%+v", got)
		}
		w.wantUsed(t, "hot:5", 2)
	})
}

// A key that must not be leased gets no units, and its checks do not offer any.
func TestKeysWithoutClientLeases(t *testing.T) {
	leases := func(r *windows.Rule) { r.Lease = 100 * time.Millisecond }
	limit := windows.Window{Limit: 10, Per: time.Second}
	counts := rule("counts", func(r *windows.Rule) { leases(r); r.OnDeny = windows.OnDenyCharge }, limit)
	watched := rule("watched", leases, limit)
	shadow := rule("shadow", func(r *windows.Rule) { r.Shadow, r.Match = true, "watched:*" }, limit)
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute, counts, shadow, watched)
	for _, key := range []string{"user:1", "counts:1", "watched:1", "nobody"} {
		if a := w.post(t, fmt.Sprintf(`{"key":%q}`, key)); a.num("lease_ms") != -1 {
			t.Errorf("%s may be leased: %s", key, a.text)
		}
		if got := w.leased(t, api.LeaseRequest{Key: key, Want: 5}); got.Units != 0 || got.LeaseMs != 0 || got.ID != "" {
			t.Errorf("%s: %+v", key, got)
		} else if rule := got.Rule; rule != "" && got.Note != "keys of the rule "+rule+" are not leased to clients" {
			t.Errorf("%s: note %q", key, got.Note)
		}
	}
}

func TestForgedLeases(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), hotRule)
	own := w.leased(t, api.LeaseRequest{Key: "hot:1", Want: 10})
	other := w.leased(t, api.LeaseRequest{Key: "hot:2", Want: 10})
	reserved := idOf(t, w.reserve(t, `{"key":"hot:1","cost":10}`))
	for says, req := range map[string]api.LeaseRequest{
		"had is -1,":                          {ID: own.ID, Had: -1},
		"had is 1000000001, expected 0 to":    {ID: own.ID, Had: 1_000_000_001},
		"used is -1, expected 0 to 10":        {ID: own.ID, Had: 10, Used: -1},
		"used is 11, expected 0 to 10":        {ID: own.ID, Had: 10, Used: 11},
		"keep is 7, expected 0 to 6":          {ID: own.ID, Had: 10, Used: 4, Keep: 7, Want: 10},
		"keep is -1, expected 0 to 10":        {ID: own.ID, Had: 10, Keep: -1, Want: 10},
		"keep is 1, expected 0 to 0":          {ID: own.ID, Had: 10, Keep: 1},
		"want is -1,":                         {Want: -1},
		"want is 0, expected 1 to":            {},
		"want is 1000000001,":                 {Want: 1_000_000_001},
		`id is "" and had is 10, expected`:    {Had: 10},
		"and had is 0, expected both":         {ID: own.ID, Want: 10},
		other.ID[:40]:                         {ID: other.ID, Had: 10, Want: 20},
		reserved + `" is of no lease`:         {ID: reserved, Had: 10, Want: 20},
		`id "../x" is of no lease of the key`: {ID: "../x", Had: 10},
		own.ID[:40]:                           {ID: own.ID + "-1", Had: 10},
		`id "a\nb" is of no lease of the key`: {ID: "a\nb", Had: 10},
	} {
		req.Key = "hot:1"
		a, _ := w.lease(t, req)
		wantProblem(t, a, 400, "bad-request", says)
	}
	a, _ := w.lease(t, api.LeaseRequest{Key: "hot:1", Want: 1, Least: -1})
	wantProblem(t, a, 400, "bad-count", "-1")
	a, _ = w.lease(t, api.LeaseRequest{Key: "hot:1", Want: 200, Least: 101})
	wantProblem(t, a, 400, "cost-exceeds-limit", "101")
	a, _ = w.lease(t, api.LeaseRequest{Want: 1})
	wantProblem(t, a, 400, "bad-key", "")
	wantProblem(t, w.do(t, "POST", "/v1/leases", `{"key":"hot:1","want":null}`), 400, "bad-request", "want is null")
	w.wantUsed(t, "hot:1", 20)
	w.wantUsed(t, "hot:2", 10)
	wantStatus(t, w.settle(t, reserved, "commit", ""), 200)
}

// forger asks for leases of two keys with whatever it knows and makes up.
type forger struct {
	*rapid.T
	w    *world
	t    *testing.T
	keys []string
	last map[string]api.LeaseAnswer // key → its lease
	ids  []string
	got  int // requests that were answered with units
}

func (f *forger) ask() {
	draw := func(name string, list ...int64) int64 { return rapid.SampledFrom(list).Draw(f.T, name) }
	key := rapid.SampledFrom(f.keys).Draw(f.T, "key")
	last := f.last[key]
	req := api.LeaseRequest{Key: key, ID: last.ID, Had: last.Units}
	if rapid.IntRange(0, 3).Draw(f.T, "forged") == 0 {
		req.ID = rapid.SampledFrom(f.ids).Draw(f.T, "id")
		req.Had = draw("had", 0, 1, last.Units, last.Units+1, 1_000_000_000)
	}
	req.Used = draw("used", 0, 0, 1, req.Had/2, req.Had, req.Had+1, 1_000_000_000)
	req.Keep = draw("keep", 0, 0, 0, max(req.Had-req.Used, 0), req.Had, req.Had+50, 1_000_000_000)
	req.Want = draw("want", 0, 1, 10, 10, 30, 1000, 1_000_000_000, 1_000_000_001)
	req.Least = draw("least", 0, 0, 0, 1, 3, 3, 100, 101)
	a, got := f.w.lease(f.t, req)
	if a.status != 200 && a.status != 400 {
		f.Fatalf("%+v: %s", req, a.text)
	}
	if a.status != 200 {
		return
	}
	f.last[key] = got
	if got.Units > 0 {
		f.got++
		f.ids = append(f.ids, got.ID)
	}
}

// No request brings the leased, reserved and charged units of a key above its limit.
func TestForgedLeasesMakeNoUnits(t *testing.T) {
	w, runs, got := newWorld(t, streamtest.AnyRedis(t), hotRule), 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		f := &forger{T: rt, w: w, t: t, last: map[string]api.LeaseAnswer{},
			keys: []string{fmt.Sprint("hot:a", runs), fmt.Sprint("hot:b", runs)}}
		reserved := idOf(t, w.reserve(t, fmt.Sprintf(`{"key":%q,"cost":20}`, f.keys[0])))
		f.ids = []string{"", "x", reserved}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 8).Draw(rt, "step") {
			case 0:
				w.advance(time.Duration(rapid.SampledFrom([]int64{1, 60, 130, 500}).Draw(rt, "ms")) * time.Millisecond)
			case 1:
				w.post(t, fmt.Sprintf(`{"key":%q,"cost":%d}`, f.keys[0], rapid.IntRange(1, 60).Draw(rt, "cost")))
			default:
				f.ask()
			}
			for _, key := range f.keys {
				if used := w.used(t, key); used > 100 {
					rt.Fatalf("%d units of 100 are used of %s", used, key)
				}
			}
		}
		if a := w.settle(t, reserved, "cancel", ""); !slices.Contains([]int{200, 410}, a.status) {
			rt.Fatalf("the reservation: %s", a.text)
		}
		got += f.got
	})
	if !testing.Short() && got < runs { // a few draws may have none
		t.Errorf("%d answers with units in %d runs: this proves too little", got, runs)
	}
}
