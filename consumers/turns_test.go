package consumers

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/streamcounter/streamcounter/windows"
)

// No code reads the rules for a partition while other code examines it.
func TestRulesAreReadInTurn(t *testing.T) {
	var looking atomic.Bool
	all := turns{partitions: make([]sync.Mutex, 2), rules: func() *windows.Rules {
		if looking.Swap(true) {
			t.Error("the rules are read while another looks by those of before")
		}
		return nil
	}}
	var lookers sync.WaitGroup
	for range 8 {
		lookers.Go(func() {
			for range 100 {
				_ = all.take(1, func(*windows.Rules) error {
					runtime.Gosched()
					looking.Store(false)
					return nil
				})
			}
		})
	}
	lookers.Wait()
}
