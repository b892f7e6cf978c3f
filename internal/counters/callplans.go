package counters

import (
	"time"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// luaPlan returns a plan for the library, as of now.
func (s *Redis) luaPlan(p *windows.Plan) *lua.Plan {
	now := time.Now().UnixMilli()
	return p.Script(now-s.changed.Load(), s.clockMs(now))
}

// callPlans are the plans of one call for the library, each once.
type callPlans struct {
	store  *Redis
	list   []*lua.Plan
	places map[*windows.Plan]int // in the list
}

func (s *Redis) newCallPlans() callPlans {
	return callPlans{store: s, places: make(map[*windows.Plan]int, 1)}
}

// place returns the place of a plan in the list, and adds the plan if the list does not have it.
func (c *callPlans) place(p *windows.Plan) int {
	i, known := c.places[p]
	if !known {
		i = len(c.list)
		c.places[p], c.list = i, append(c.list, c.store.luaPlan(p))
	}
	return i
}

// clockMs estimates the time of Redis's clock at ms of this machine's clock. If the estimate is in the
// wrong period, the script returns an error, and retryInPeriod runs it again.
func (s *Redis) clockMs(ms int64) int64 {
	if s.Now != nil {
		return s.Now()
	}
	return ms + s.ahead.Load()
}

// maxPeriods is how often a script is run again because a period is over.
const maxPeriods = 8

// retryInPeriod runs do. It runs do again if the script found that the clock of Redis is outside the periods in its
// arguments. The script has written nothing then.
func (s *Redis) retryInPeriod(do func() error) error {
	for n := 0; ; n++ {
		err := do()
		now, over := lua.IsOutOfPeriod(err)
		if !over || n == maxPeriods {
			return err
		}
		s.ahead.Store(now - time.Now().UnixMilli())
	}
}

// UnderPlans runs do, which calls the library with the plans of the requests. It runs do again if the library finds
// that a period of a plan is over.
func (s *Redis) UnderPlans(requests []Request, do func() error) error {
	for _, request := range requests {
		s.noticePlan(request.Plan)
	}
	return s.retryInPeriod(do)
}

// section is the number that section_at in plan.lua reads, for keys that share a plan and a partition of a call. plan
// and partition are their places, from 0.
func section(keys, plan, partition int) int { return keys + 8192*(plan+1+4096*(partition+1)) }

// sectionKeys is the largest number of keys in a section.
const sectionKeys = 8191

// appendValues adds the values of a check or an event to the arguments, one per meter that counts values.
func appendValues(args []any, values []string) []any {
	for _, v := range values {
		args = append(args, v)
	}
	return args
}
