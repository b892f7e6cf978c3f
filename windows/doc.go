// Package windows owns what is counted over which sliding windows: the rules
// (rule.go, load.go, match.go, source.go), the counter that everybody requests
// (counter.go), its two stores, Redis (redis.go) and this process (local.go),
// and the arithmetic of levels (level.go). Read rule.go next, then counter.go.
package windows
