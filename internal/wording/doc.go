// Package wording describes in plain words what rules mean, and what differs between two sets of
// rules. It has the sentences about rules and windows. The sentences about a rule's options are in package windows,
// with each option. rule.go describes a rule, diff.go compares rules. Read rule.go next.
package wording
