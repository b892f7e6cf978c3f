package measure

import (
	"fmt"
	"math/rand/v2"
)

// Keys says how many keys a load has, and how often each is used: by a Zipf distribution of exponent S, which is above
// 1, or uniformly if S is 0.
type Keys struct {
	N int
	S float64
}

// Validate returns an error that names the wrong flag.
func (k Keys) Validate() error {
	if k.S != 0 && k.S <= 1 {
		return fmt.Errorf("--zipf-s is %g: expected more than 1, or 0 for uniform", k.S)
	}
	return nil
}

// Chooser returns a function that chooses a key, from 0 to N-1.
func (k Keys) Chooser(random *rand.Rand) func() int {
	if k.S == 0 || k.N < 2 {
		return func() int { return random.IntN(k.N) }
	}
	zipf := rand.NewZipf(random, k.S, 1, uint64(k.N-1))
	return func() int { return int(zipf.Uint64()) }
}
