package windows

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/reload"
)

// minHashKey is how many bytes a secret must have at least, because shorter secrets can be guessed.
const minHashKey = 16

// hashBytes is how many bytes of the HMAC are stored. 16 bytes of two values are equal by chance once in 2^64 values.
const hashBytes = 16

// HashKey is the secret that hashes values (HMAC-SHA256) before they go to Redis. An empty HashKey hashes nothing.
type HashKey string

// unread marks a window with `hash: true` before Parse has read the secret. With WithoutHashKey the mark stays, with
// the path of the secret after it. No secret begins with a space.
const unread = " "

// NewHashKey returns the key in the content of a secret file. White space around the secret is not part of it.
func NewHashKey(secret []byte) (HashKey, error) {
	secret = bytes.TrimSpace(secret)
	if len(secret) < minHashKey {
		return "", fmt.Errorf("it has %d bytes: want at least %d", len(secret), minHashKey)
	}
	return HashKey(secret), nil
}

// WithoutHashKey makes Parse not read the file of the secret, because `rules check` runs on machines that do not have
// it. The rules can be validated and shown, but must not be used to count.
const WithoutHashKey ParseOption = 1

// giveHashKey sets the secret in the file at path in all windows with `hash: true`. A relative path begins at the
// folder of the rules file.
func giveHashKey(d *document.Document, rulesFile, path string, list []*Rule, options []ParseOption) error {
	marked := HashKey(unread + path)
	key := marked
	for i, r := range list {
		for j := range r.Windows {
			w := &r.Windows[j]
			if w.Hash.IsZero() {
				continue
			}
			if path == "" {
				return d.ErrorAt(fmt.Sprintf("rules[%d].windows[%d].hash", i, j),
					"hash: want hash_key, the path of a file with a secret, at the top of the file")
			}
			if key == marked && !slices.Contains(options, WithoutHashKey) {
				var err error
				if key, err = readHashKey(reload.Beside(rulesFile, path)); err != nil {
					return d.ErrorAt("hash_key", "hash_key %q: %w", path, err)
				}
			}
			w.Hash = key
		}
	}
	return nil
}

func readHashKey(path string) (HashKey, error) {
	files, err := reload.Read("secret", path)
	if err != nil {
		return "", err
	}
	key, err := NewHashKey(files[0].Data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// IsZero reports whether there is no secret.
func (k HashKey) IsZero() bool { return k == "" }

// MarshalJSON returns the fingerprint of the secret, and not the secret.
func (k HashKey) MarshalJSON() ([]byte, error) { return json.Marshal(k.String()) }

// String returns the fingerprint, so that the secret is never printed.
func (k HashKey) String() string {
	if strings.HasPrefix(string(k), unread) {
		return "hash"
	}
	return "hash-" + k.fingerprint()
}

// Says returns in words that values are hashed, and with which file, if it was not read.
func (k HashKey) Says() string {
	if path, is := strings.CutPrefix(string(k), unread); is {
		return "hashed by " + path + ", not read"
	}
	return "hashed"
}

// fingerprint identifies the secret. It is part of the names of keys in Redis, so another secret begins new sets.
func (k HashKey) fingerprint() string {
	return hex.EncodeToString(k.sum("the fingerprint of the secret")[:4])
}

// hash returns the text that Redis stores instead of the value.
func (k HashKey) hash(value string) string {
	return base64.RawURLEncoding.EncodeToString(k.sum("=" + value)[:hashBytes])
}

func (k HashKey) sum(text string) []byte {
	h := hmac.New(sha256.New, []byte(k))
	h.Write([]byte(text))
	return h.Sum(nil)
}
