// Package windows has the rules: which keys are counted over which windows.
//
// [Load], [Parse] and [NewRules] return [Rules]. [NewSource] follows the changes of a file. Rules.Match returns the
// [Plan] of a key, nil if no rule matches it: the windows that are counted for it, and the meters in Redis that count
// them. Limits are in units, times in Go are time.Duration, and fields that end in Ms are milliseconds.
package windows
