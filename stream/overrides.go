package stream

// Overrides is the hash of what operators have set for single keys and for patterns.
func (k *Keys) Overrides(p int) string { return k.tags[p] + "overrides" }

// Audit is the stream of who changed which override.
func (k *Keys) Audit(p int) string { return k.tags[p] + "audit" }
