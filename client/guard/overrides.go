package guard

import "github.com/streamcounter/streamcounter/api"

// withBlocks adds the name of the decisions of blocks to rules. A block by an operator holds under every rule.
func withBlocks(rules []string) []string { return append([]string{api.OverrideRule}, rules...) }
