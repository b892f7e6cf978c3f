package windows

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Fingerprint is the same for the same rules in the same order, defaults filled in,
// whatever files they come from: 16 hexadecimal digits.
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
