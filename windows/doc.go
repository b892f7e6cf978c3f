// Package windows has the rules (which keys are counted over which windows) and the
// counters that they are counted in.
//
// [Load], [Parse] and [NewRules] give [Rules]; [NewSource] follows a file. Rules.Match
// gives the [Plan] of a key, nil where no rule matches it. A [Counter] answers whether
// keys may be charged: [Redis] is the shared one, [Local] this process's own. Limits and
// costs are units, times in Go are time.Duration, and fields in Ms are milliseconds.
//
// A Counter neither waits nor retries. Where Redis does not answer, a check has no
// verdict, and it may have been charged. Package client/direct adds deadlines, batches
// and a circuit breaker for services; package check does for servers.
package windows
