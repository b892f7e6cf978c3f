package bench

import (
	"math/rand/v2"
	"strconv"
)

// chooser chooses keys by their rank, from 0. It is used by one goroutine.
type chooser func() int

// newChooser chooses the same keys for the same seed.
func newChooser(c *Config) chooser {
	r := rand.New(rand.NewPCG(c.Seed, 0x5ca1ab1e))
	if c.Skew == Zipf {
		z := rand.NewZipf(r, c.ZipfS, 1, uint64(c.Keys-1))
		return func() int { return int(z.Uint64()) }
	}
	return func() int { return r.IntN(c.Keys) }
}

// draw chooses n keys.
func (next chooser) draw(n int) []int {
	picks := make([]int, n)
	for i := range picks {
		picks[i] = next()
	}
	return picks
}

func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "user:" + strconv.Itoa(i)
	}
	return names
}
