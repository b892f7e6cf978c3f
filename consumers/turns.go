package consumers

import (
	"sync"

	"github.com/streamcounter/streamcounter/windows"
)

// turns has what looks at the levels of one partition by the rules follow one another within this process, each
// with the rules as they are when its turn comes: else one with the rules of before a reload could write after
// one with the new. (Other processes may have old rules for a while, hence recheckAfter.)
type turns struct {
	rules      func() *windows.Rules
	partitions []sync.Mutex
}

func newTurns(c Config) *turns {
	return &turns{rules: c.Rules, partitions: make([]sync.Mutex, c.Keys.Partitions)}
}

func (t *turns) take(p int, look func(rules *windows.Rules) error) error {
	t.partitions[p].Lock()
	defer t.partitions[p].Unlock()
	return look(t.rules())
}
