package windows_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

// The clock moves by as much per operation as entries lie apart, so that a log
// keeps its length: what enters also leaves.

var localSizes = []int{1, 100, 10_000}

// localWith gives one key n entries of one unit, in a window that holds just so
// many, the clock that it goes by, how far apart the entries lie in ms, and an
// ask of one unit.
func localWith(b *testing.B, n int, limit int64) (l *windows.Local, ms *atomic.Int64, apart int64,
	ask []windows.Request) {
	b.Helper()
	apart = max(1, windows.MinWindow.Milliseconds()/int64(n))
	rule := planOf(rulesOf(b, &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: limit,
		Per: time.Duration(int64(n)*apart) * time.Millisecond}}}))
	ms = new(atomic.Int64)
	ms.Store(start)
	l = windows.NewLocal(0, ms.Load)
	for range n {
		l.Add(rule, "user:1", ms.Add(apart), 1)
	}
	return l, ms, apart, []windows.Request{{Plan: rule, Key: "user:1", Cost: 1}}
}

func BenchmarkLocalCheck(b *testing.B) {
	for _, n := range localSizes {
		for _, outcome := range []string{"admitted", "denied"} {
			b.Run(fmt.Sprintf("%s/entries=%d", outcome, n), func(b *testing.B) {
				limit := int64(n)
				if outcome == "admitted" {
					limit = windows.MaxLimit
				}
				l, ms, step, ask := localWith(b, n, limit)
				if outcome == "denied" {
					step = 0 // it is full, and stays so
				}
				b.ReportAllocs()
				for b.Loop() {
					ms.Add(step)
					if v, err := l.Check(context.Background(), ask); err != nil ||
						v.Allowed != (outcome == "admitted") {
						b.Fatal(v, err)
					}
				}
			})
		}
	}
}

// All callers share one mutex: this is what it costs.
func BenchmarkLocalCheckParallel(b *testing.B) {
	l, ms, step, ask := localWith(b, 100, windows.MaxLimit)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			ms.Add(step)
			if _, err := l.Check(context.Background(), ask); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkLocalAdd(b *testing.B) {
	for _, n := range localSizes {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			l, ms, step, ask := localWith(b, n, windows.MaxLimit)
			b.ReportAllocs()
			for b.Loop() {
				l.Add(ask[0].Plan, ask[0].Key, ms.Add(step), 1)
			}
		})
	}
}

func BenchmarkLocalPeek(b *testing.B) {
	for _, n := range localSizes {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			l, _, _, ask := localWith(b, n, windows.MaxLimit)
			b.ReportAllocs()
			for b.Loop() {
				if st, err := l.Peek(context.Background(), ask[0].Plan, ask[0].Key); err != nil ||
					st.Windows[0].Used != int64(n) {
					b.Fatal(st, err)
				}
			}
		})
	}
}

// One check of each of many keys in turn, each with an entry already.
func BenchmarkLocalManyKeys(b *testing.B) {
	for _, keys := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			rule := planOf(rulesOf(b, &windows.Rule{Name: "api", Match: "*",
				Windows: []windows.Window{{Limit: windows.MaxLimit, Per: time.Minute}}}))
			var ms int64 = start
			l := windows.NewLocal(0, func() int64 { return ms })
			asks := make([][]windows.Request, keys)
			for i := range asks {
				asks[i] = []windows.Request{{Plan: rule, Key: "user:" + strconv.Itoa(i), Cost: 1}}
				l.Add(rule, asks[i][0].Key, ms, 1)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := l.Check(context.Background(), asks[i%keys]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
