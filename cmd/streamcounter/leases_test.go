package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// leaseAnswer is what a caller of one of several serves was told.
type leaseAnswer struct {
	asked, answered time.Time
	allowed, leased bool
}

// leaseCallers ask serves for one key, each of them for one unit after the other.
type leaseCallers struct {
	t    *testing.T
	at   [2]string
	mu   sync.Mutex
	more *sync.Cond
	all  []leaseAnswer
	stop bool
}

func (c *leaseCallers) call(i int) {
	var body struct {
		Allowed bool
		Source  string
	}
	for n := i; ; n++ {
		one := leaseAnswer{asked: time.Now()}
		resp, err := http.Get("http://" + c.at[n%len(c.at)] + "/v1/check?key=hot")
		one.answered = time.Now()
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&body)
			_ = resp.Body.Close()
		}
		c.mu.Lock()
		if err == nil { // else it is being killed
			one.allowed, one.leased = body.Allowed, body.Source == "lease"
			c.all = append(c.all, one)
			c.more.Broadcast()
		}
		stop := c.stop
		c.mu.Unlock()
		if stop {
			return
		}
	}
}

// until waits until so many were admitted.
func (c *leaseCallers) until(admitted int) {
	c.t.Helper()
	late := false
	defer time.AfterFunc(time.Minute, func() {
		c.mu.Lock()
		late = true
		c.more.Broadcast()
		c.mu.Unlock()
	}).Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; ; c.more.Wait() {
		n := 0
		for _, one := range c.all {
			if one.allowed {
				n++
			}
		}
		if n >= admitted {
			return
		}
		if late {
			c.t.Fatalf("%d of %d admitted", n, admitted)
		}
	}
}

// most is how many units were certainly admitted within one window: asked for and answered in it.
func (c *leaseCallers) most(window time.Duration) (most int) {
	for _, first := range c.all {
		n, end := 0, first.asked.Add(window)
		for _, one := range c.all {
			if one.allowed && !one.asked.Before(first.asked) && one.answered.Before(end) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Two serves answer for one key from leases, one is killed and comes back: no window holds more than the limit.
func TestLeasesOfTwoServersKeepTheLimit(t *testing.T) {
	const limit = 200
	redis, prefix := streamtest.OwnRedis(t).URL(), streamtest.Prefix(t)
	rules := testkit.WriteFile(t, "rules.yml", fmt.Sprintf(`rules:
  - {name: hot, match: "hot", windows: [{limit: %d, per: 2s}], lease: 1s}
`, limit))
	c := &leaseCallers{t: t}
	c.more = sync.NewCond(&c.mu)
	serve := func(i int) *process {
		p := startProgram(t, "serve", "--redis", redis, "--prefix", prefix, "--rules", rules, "--http", c.at[i],
			"--grpc", "")
		p.until(`"msg":"ready"`)
		return p
	}
	var serves [2]*process
	for i := range serves {
		c.at[i] = fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
		serves[i] = serve(i)
	}
	var calling sync.WaitGroup
	for i := range 4 {
		calling.Go(func() { c.call(i) })
	}
	c.until(limit + limit/4) // a window has passed
	serves[0].kill()
	serves[0] = serve(0)
	c.until(3 * limit)
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	calling.Wait()
	leased := 0
	for _, one := range c.all {
		if one.leased {
			leased++
		}
	}
	if most := c.most(2 * time.Second); most > limit || leased < limit {
		t.Errorf("%d units in one window, the limit is %d; %d of %d answers from leases", most, limit, leased,
			len(c.all))
	}
	for i, p := range serves {
		if code := p.interrupt(); code != 0 || strings.Contains(p.text(), "panic") {
			t.Errorf("serve %d ended with %d", i, code)
		}
	}
}
