package windows

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Fingerprint returns 16 hexadecimal digits. They are the same for the same rules in
// the same order, with defaults filled in, whatever files the rules come from.
func (r *Rules) Fingerprint() string {
	h := sha256.New()
	for _, rule := range r.list {
		b, err := json.Marshal(rule) // all of its fields are exported
		if err != nil {
			b = fmt.Appendf(nil, "%+v", *rule)
		}
		h.Write(append(b, '\n'))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
