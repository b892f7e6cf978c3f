package counters_test

import (
	"context"
	"math/rand/v2"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// 64 callers check one key with random costs, by the server's clock. A recount of the
// admitted checks shows that no window gets more than the limit.
func TestConcurrentCallersNeverGetMoreThanTheLimit(t *testing.T) {
	rule := &windows.Rule{Name: "r", Match: "*", Windows: []windows.Window{{Limit: 50, Per: 200 * time.Millisecond},
		{Limit: 70, Per: time.Second}}}
	calls := 100
	if testing.Short() {
		calls = 20
	}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		s.useClock(nil)
		rule := planOf(s.rules)
		var mu sync.Mutex
		type admitted struct{ ms, cost int64 }
		var all []admitted
		var callers sync.WaitGroup
		for c := range uint64(64) {
			callers.Go(func() {
				random := rand.New(rand.NewPCG(c, 1))
				for range calls {
					cost := 1 + random.Int64N(5)
					v, err := s.Check(context.Background(), []counters.Request{{Plan: rule, Key: "k", Cost: cost}})
					if err != nil {
						t.Error(err)
						return
					}
					if v.Allowed {
						mu.Lock()
						all = append(all, admitted{v.Items[0].NowMs, cost})
						mu.Unlock()
					}
				}
			})
		}
		callers.Wait()
		sort.Slice(all, func(i, j int) bool { return all[i].ms < all[j].ms })
		for _, w := range rule.Live.Windows {
			fullest := int64(0)
			for i := range all { // the window that ends at each admission
				var sum int64
				for j := i; j >= 0 && all[j].ms > all[i].ms-w.Per.Milliseconds(); j-- {
					sum += all[j].cost
				}
				for j := i + 1; j < len(all) && all[j].ms == all[i].ms; j++ {
					sum += all[j].cost
				}
				fullest = max(fullest, sum)
			}
			if fullest > w.Limit {
				t.Errorf("%d units within %v, the limit is %d", fullest, w.Per, w.Limit)
			}
			if fullest < w.Limit*9/10 {
				t.Errorf("at most %d units within %v: the limit of %d was never near, the test proves nothing",
					fullest, w.Per, w.Limit)
			}
		}
	})
}
