package counters

// SetClockAhead has it believe that the clock of Redis is so many ms ahead of this machine's.
func (s *Redis) SetClockAhead(ms int64) { s.ahead.Store(ms) }
