package consumers

import (
	"sync"

	"github.com/streamcounter/streamcounter/windows"
)

// turns makes all code that examines the levels of one partition by the rules run one after another within this
// process, each time with the rules that are in force when its turn comes. Otherwise code with the rules from before
// a reload could write after code with the new rules. (Other processes may have old rules for a while, hence
// recheckAfter.)
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
