package counters

// SetClockAhead sets how many ms the clock of Redis seems to be ahead of this machine's.
func (s *Redis) SetClockAhead(ms int64) { s.ahead.Store(ms) }
