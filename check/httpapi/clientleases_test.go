package httpapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
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
		reserved := w.reserve(t, fmt.Sprintf(`{"key":%q,"cost":20}`, f.keys[0])).str("id")
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
		if a := w.do(t, "DELETE", "/v1/reservations/"+reserved, ""); !slices.Contains([]int{200, 410}, a.status) {
			rt.Fatalf("the reservation: %s", a.text)
		}
		got += f.got
	})
	if !testing.Short() && got < runs { // a few draws may have none
		t.Errorf("%d answers with units in %d runs: this proves too little", got, runs)
	}
}
