package subscription

import (
	"fmt"
	"strings"
)

// ValidateToken reports whether a prefix or the name of a rule can be one token of a NATS subject.
func ValidateToken(name string) error {
	if name == "" || strings.ContainsAny(name, ".*> \t\r\n") {
		return fmt.Errorf("%q is not a prefix or rule: it cannot be part of a NATS subject", name)
	}
	return nil
}
