// Package wording says in plain words what rules mean, and what differs between two sets of
// rules. It owns the sentences about rules and windows; what an option of a rule means is said in windows, beside
// the option. rule.go has a rule's sentence, diff.go compares. Read rule.go next.
package wording
