package compare

import (
	"math/big"

	"github.com/streamcounter/streamcounter/windows"
)

// gcra is a model of the generic cell rate algorithm (ITU-T I.371), which many limiters use. A request of one unit
// moves the key's theoretical arrival time by per/limit. It is admitted while that time is at most a whole window
// ahead, so that a burst of the limit passes. GCRA keeps one number per key. It bounds the rate, not the number of
// requests in a window. It is included because people compare an exact count with it.
type gcra struct {
	windows []windows.Window
	// arrival: key → per window, the theoretical arrival time in ms times the
	// limit. per/limit is then a whole number, and nothing is ever rounded.
	arrival map[string][]*big.Int
}

func newGCRA(ws []windows.Window) *gcra {
	return &gcra{windows: ws, arrival: map[string][]*big.Int{}}
}

// admit admits the request if every window conforms; otherwise it changes nothing.
func (g *gcra) admit(r Request) bool {
	had := g.arrival[r.Key]
	next := make([]*big.Int, len(g.windows))
	for i, w := range g.windows {
		limit, per := big.NewInt(w.Limit), big.NewInt(w.Per.Milliseconds())
		now := new(big.Int).Mul(big.NewInt(r.Ms), limit)
		at := new(big.Int).Set(now)
		if had != nil && had[i].Cmp(now) > 0 {
			at.Set(had[i])
		}
		at.Add(at, new(big.Int).Mul(big.NewInt(r.Cost), per))
		if ahead := new(big.Int).Sub(at, now); ahead.Cmp(per.Mul(per, limit)) > 0 {
			return false
		}
		next[i] = at
	}
	g.arrival[r.Key] = next
	return true
}
