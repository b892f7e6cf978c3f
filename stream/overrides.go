package stream

// Overrides is the hash of the overrides of single keys, patterns and networks.
func (k *Keys) Overrides(p int) string { return k.tags[p] + "overrides" }

// Audit is the stream of the changes of overrides, with the operator of each.
func (k *Keys) Audit(p int) string { return k.tags[p] + "audit" }
