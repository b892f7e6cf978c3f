package consumers

import "github.com/streamcounter/streamcounter/windows"

// inTurn makes all code that examines the levels of one partition by the rules run one after another within this
// process, each time with the rules that are in force when its turn comes. Otherwise code with the rules from before
// a reload could write after code with the new rules. (Other processes may have old rules for a while, hence
// recheckAfter.)
func (s *shared) inTurn(p int, look func(rules *windows.Rules) error) error {
	s.turns[p].Lock()
	defer s.turns[p].Unlock()
	return look(s.Rules())
}
