// Package windows has the rules: which keys are counted over which windows.
//
// [Load], [Parse] and [NewRules] give [Rules]; [NewSource] follows a file. Rules.Match gives the [Plan] of a key, nil
// where no rule matches it: the windows that are counted for it, and the meters in Redis that count them. Limits are
// units, times in Go are time.Duration, and fields in Ms are milliseconds.
package windows
